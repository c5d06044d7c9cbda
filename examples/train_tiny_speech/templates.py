"""Sentences of a voice assistant's day, made from a small grammar: times, prices, weather, directions, small talk.

A rule's `{name}` is replaced by a random choice of that list, `{number:low:high}` and its kin by a spelled-out number.
"""

from __future__ import annotations

import random
import re

from train_tiny_speech.spoken_numbers import cardinal, clock, ordinal, year

_LISTS = {
    "person": "Alice Bob Carol David Emma Frank Grace Henry Isabel Jack Karen Leo Maria Nathan Olivia Peter Quinn "
    "Rachel Sam Tina Victor Wendy Zoe Michael Sarah James Linda Robert Susan Thomas Anna Daniel Laura "
    "Kevin Julia Steven Nicole George Hannah Oscar Ruth Priya Ahmed Chen Yuki Diego Fatima Ivan Ingrid "
    "Marco Sofia",
    "city": "London Paris Tokyo Berlin Madrid Rome Chicago Boston Seattle Toronto Sydney Dublin Oslo Vienna "
    "Prague Lisbon Athens Cairo Delhi Mumbai Beijing Seoul Singapore Moscow Warsaw Helsinki Denver Dallas "
    "Atlanta Houston Phoenix Portland Miami Austin Detroit Montreal Vancouver Melbourne Geneva Brussels "
    "Amsterdam Stockholm Copenhagen Budapest Istanbul Bangkok Nairobi Lima Bogota Havana",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "thing": "keys phone wallet umbrella jacket laptop charger notebook bicycle suitcase guitar camera passport "
    "sandwich blanket ladder bottle letter package report invoice receipt ticket calendar playlist "
    "document photo recipe backpack",
    "kind": "small large red blue green yellow old new broken quiet noisy heavy light cheap expensive beautiful "
    "strange simple complicated perfect terrible wonderful delicious cold warm empty full clean dirty "
    "bright dark",
    "do": "find open close clean move carry repair borrow return paint wash lift hide drop sell buy send bring check",
    "place": "kitchen garden office library station airport hospital museum restaurant supermarket park beach "
    "school university bank hotel bakery pharmacy garage basement attic theater stadium market",
    "food": "milk eggs bread butter cheese apples bananas oranges tomatoes potatoes onions carrots rice pasta "
    "chicken salmon coffee tea sugar salt pepper garlic spinach yogurt cereal honey lemons grapes",
    "weather": "sunny cloudy rainy windy snowy foggy stormy clear overcast humid freezing",
    "event": "meeting appointment flight lesson reservation call interview train concert delivery",
    "opening": "Sure Okay Certainly Done Alright Absolutely Great Thanks Yes",
    "side": "left right",
}
_CHOICES = {name: words.split() for name, words in _LISTS.items()} | {
    "when": ["{day}", "{month} {ordinal:1:31}", "tomorrow", "tonight", "{time}", "{day} at {time}"],
    "time": ["{clock}", "{clock} in the morning", "{clock} in the afternoon", "half past {number:1:12}", "noon"],
    "money": ["{number:2:99} dollars", "{number:2:99} dollars and {number:2:99} cents", "{number:100:9999} euros"],
    "digit": ["{number:0:9}"],
}
_RULES = (
    "Your {event} {when} is confirmed.",
    "The {event} has been moved to {when}.",
    "It is {time} in {city}.",
    "{opening}, I have set an alarm for {time}.",
    "{opening}, I started a timer for {number:2:59} minutes.",
    "{opening}, I will remind you {when} to {do} the {thing}.",
    "The weather in {city} is {weather} today, with a high of {number:30:99} degrees.",
    "Expect {weather} skies until {time}, then it turns {weather}.",
    "{person} called {number:2:59} minutes ago and asked about the {thing}.",
    "{person} sent you a message from {city}.",
    "Could you {do} the {kind} {thing} for me, please?",
    "Where did {person} {do} that {kind} {thing}?",
    "Did you {do} the {thing} in the {place}?",
    "{person} and {person} met at the {place} in {city}.",
    "I added {food}, {food}, and {food} to your list.",
    "Do we still need {food} and {food} for dinner?",
    "The total comes to {money}.",
    "That {thing} costs {money}, which is rather {kind}.",
    "{number:2:999} plus {number:2:99} is {number:4:1100}.",
    "In {year}, {person} moved from {city} to {city}.",
    "Turn {side} in {number:2:900} feet, then take the {ordinal:1:9} exit.",
    "Keep {side} at the {place} and continue for {number:2:30} miles.",
    "The number is {digit} {digit} {digit}, {digit} {digit} {digit} {digit}.",
    "You have {number:2:40} new messages and {number:2:40} missed calls.",
    "I'm sorry, I couldn't find the {thing} you asked for.",
    "Sorry, the {place} is closed on {day}.",
    "Would you like me to book a table for {number:2:12} on {day}?",
    "Should I call {person} back, or wait until {when}?",
    "Hello {person}, how can I help you today?",
    "Good morning, {person}. It's {weather} outside.",
    "Here's a short summary of the {thing} from {person}.",
    "My {kind} {thing} is behind the {place}.",
    "Please {do} the {thing} before {when}.",
    "Page {number:1:400}, how to {do} a {kind} {thing}.",
    "{number:2:99} percent of visitors said the {place} was {kind}.",
    "I don't think that's right, let's try it again.",
    "It's about {number:2:90} kilometers from {city} to {city}.",
    "Why don't we {do} the {thing} together?",
)
_SLOT = re.compile(r"\{(\w+)(?::(\d+):(\d+))?\}")


def assistant_sentence(rng: random.Random) -> str:
    def expand(slot: re.Match[str]) -> str:
        name = slot[1]
        if name == "clock":
            return clock(rng.randint(1, 12), rng.choice((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)))
        if name == "year":
            return year(rng.randint(1500, 2029))
        if slot[2]:
            number = rng.randint(int(slot[2]), int(slot[3]))
            return ordinal(number) if name == "ordinal" else cardinal(number)
        return _SLOT.sub(expand, rng.choice(_CHOICES[name]))

    sentence = _SLOT.sub(expand, rng.choice(_RULES))
    return sentence[0].upper() + sentence[1:]
