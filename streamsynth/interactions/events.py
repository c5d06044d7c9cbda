"""The one registry of what an interaction's `event` may hold. A model serves those that its traits name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value, unknown_field

MAX_PROMPT_CHARACTERS = 4096
"""Of a prompt, whatever surface it comes through; a model may set its own limit below it."""

MAX_TRANSITION_CHUNKS = 1000

_DECIMAL = re.compile(r"-?[0-9]{1,19}")
_INT64 = range(-(2**63), 2**63)


def check_prompt(value: object, param: str = "prompt") -> str:
    """A prompt that says something, as given."""
    limit = f"text of 1 to {MAX_PROMPT_CHARACTERS} characters that are not all spaces"
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_PROMPT_CHARACTERS:
        raise invalid_value(param, value, limit)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid_value(param, value, "free of lone surrogates") from None
    return value


def check_seed(value: object, param: str = "seed") -> int:
    """An integer, or one as text: JavaScript cannot carry 64 bits."""
    number = int(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value
    if isinstance(number, bool) or not isinstance(number, int) or number not in _INT64:
        raise invalid_value(param, value, "an integer of 64 bits, or one as a decimal string")
    return number


EVENT_FIELDS: Mapping[str, Callable[[object, str], Any]] = {"prompt": check_prompt, "seed": check_seed}
"""Field name -> its check, which returns the value to use and raises INVALID_VALUE naming the given parameter.

What a model does with a field is its handler in `interactions.steering.Steering`.
"""


def check_event(event: Mapping[str, object]) -> dict[str, Any]:
    """The checked fields. Raises MISSING_FIELD, UNKNOWN_FIELD or INVALID_VALUE."""
    if not event:
        known = ", ".join(EVENT_FIELDS)
        raise StreamSynthError(
            ErrorCode.MISSING_FIELD, f"event is empty; it has one or more of: {known}", param="event"
        )
    checked = {}
    for name, value in event.items():
        check = EVENT_FIELDS.get(name)
        if check is None:
            raise unknown_field(name, " in event")
        checked[name] = check(value, f"event.{name}")
    return checked
