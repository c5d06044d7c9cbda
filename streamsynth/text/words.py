"""The words that decide whether a period ends a sentence. English; all lower case, without their last period."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _words(
    """adm att brig capt cmdr col cpl dr esq fr gen gov hon insp lt maj messrs mlle mme mr mrs ms msgr pres prof rep
    rev rt sen sgt supt"""
)
"""Capitalised, they stand before a name and never end a sentence."""

BEFORE_NUMBER = _words(
    """app apr art aug bk ch chap col cols dec eq eqs ex feb fig figs jan jul jun lot mar no nos nov nr oct op p para
    pg pl pp pt rm sec sect sep sept sig st sts tab v ver vol vols vs"""
)
"""Go on if a digit follows, as in "No. 5"."""

NEVER_LAST = _words("approx c.f ca cf e.g eg esp excl i.e ie incl q.v resp viz vs")
"""Always go on, whatever stands behind them."""

ABBREVIATIONS = NEVER_LAST | _words(
    """abbr acad adm admin agric aka al appt apr apt assn assoc asst atty aug auth ave avg bldg blvd bros capt ch cir
    cmdr co col comm conf conn contd corp cpl ct dec def dept dict dist div ed eds elec encl est etc exec feb fig
    figs fn freq fri ft gov govt hist hon hr hrs hwy ibid illus inc inst int intl intro jan jr jul jun juv lang lbs
    ln lt ltd maj mfg mgr mi misc mlle mme mon msgr mt mts natl neg nos nov nr nt oct orig oz pct pg pkg pkwy pl
    poss pp pref pres prev prob prof pseud pt publ qt quot rd refs reg req rm rt sec sep sept ser sgt sig soc spec
    sq sr st sta std ste sts subj suppl supt syn syst tel temp terr thu thur thurs trans tue tues twp univ usu var
    vol vols wk wt yd yr yrs"""
)
"""May end a sentence, but only if the next word looks like the start of one."""

STARTERS = _words(
    """a about after again all although an and another any are as at based because before both but by can could did do
    does during each even every everyone finally first for from further furthermore had has have he hence her here
    his how however i if in indeed instead is it its just last later let many maybe meanwhile most my next no nobody
    not nothing now of often on once one only or other others our perhaps please several shall she should since so
    some soon such that the their then there therefore these they this those though thus to today together tomorrow
    two under until we were what when where whether which while who whose why with without would yes yesterday yet
    you your"""
)
"""Capitalised behind an abbreviation, they start a sentence: "at 7 a.m. The", "in the U.S. He"."""

NAME_SUFFIXES = _words("co corp esq ii iii inc iv jr llc ltd md phd plc sr")
"""Belong to the name before the comma: "Smith, Jr." is one clause."""

LONGEST_STARTER = max(map(len, STARTERS | NAME_SUFFIXES))
