"""Words around a number: some change its meaning, others only name the counted things."""

from __future__ import annotations

import re

_DENIALS = """
no not never neither nor none nothing cannot cant isnt wasnt arent doesnt didnt dont wont couldnt shouldnt wouldnt
rejecting excluding eliminating discarding dismissing ignoring extraneous spurious
wrong wrongly incorrect incorrectly false falsely untrue mistaken mistake mistakenly error erroneous impossible invalid
unlikely rejected refuted excluded eliminated discarded dismissed ruled except but however instead unless wait oops
fails failed contradiction absurd nonsense doubt doubts deny denies denied rather hardly scarcely barely
refuse refuses refused
"""
_HEDGES = """
or either maybe perhaps possibly probably presumably might may could likely unsure uncertain unknown guess guessing
guessed versus vs let nobody alternatively otherwise depending depends whether unclear
undetermined if assume assuming imagine provided suppose
supposing somewhere anywhere anything nowhere
"""
_BOUNDS = """
between least most almost nearly under above below beyond exceed exceeds exceeding within until till through close near
lower upper infinity
"""
_ARITHMETIC = """
minus plus divided multiplied subtracted twice thrice double triple quadruple half halves third thirds fourth fourths
fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths twelfth twelfths
hundredth hundredths thousandth thousandths millionth millionths billionth billionths
squared cubed factorial root roots sqrt power powers exponent mod modulo remainder
reciprocal inverse opposite negation negative choose log ln sin cos tan exp pi
"""
_AMOUNTS = """
zero two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety tens hundred hundreds thousand thousands million millions
billion billions trillion trillions dozen dozens
"""
AMOUNTS = frozenset(_AMOUNTS.split())
_REGULAR = """
need cost earn gain total travel remain require receive weigh measure last contain save owe use add look finish
produce collect score charge cover reach walk bake cook plant donate return end turn work jump serve complete invest
expect deliver attend fill drop gather climb average want play start include result yield represent equal fit enter
arrive live increase decrease pick pack order sail run make leave give take get buy sell sit eat drink drive ride read
hit land stop meet pass cross overtake catch occur happen write win lose hold keep pay spend grow come go put find
draw throw bring set see say tell have do let cut call stay burn print melt fly swim
"""
_IRREGULAR = """
is are was were be been am has had does did made left gave took got bought sold ate drank drove rode wrote won lost held
kept paid spent grew came went found drew threw caught brought saw said told ran swam flew sang saves goes
put read cut rose rises fell falls
can will would must should let beat hit shot slept woke wore began shows show shown done contains equals
"""
_VERBS = frozenset(_IRREGULAR.split()) | frozenset(
    form for verb in _REGULAR.split() for form in (verb, f"{verb}s", f"{verb}es", f"{verb}ed", f"{verb.rstrip('e')}ed")
)
_FILLING = "about approximately exactly only just roughly around nearly the a an"
_FILLERS = frozenset(_FILLING.split())
_PREPOSITIONS = {"for", "at", "by", "up", "out", "back", "down", "another"}
_REFERRING = """
room version figure page chapter exercise grade level year route bus flight gate day week month case step line row
column part lesson question problem equation section unit item note figure table box track channel highway apartment
suite number option team player group round game volume issue act class type model series season episode verse psalm
in of on to with from than into per about within during over under near through between among as and or the a an
"""
_VALUES = {"maximum", "minimum", "value", "total", "remainder", "probability"}
"""Nouns whose number stands behind `of`."""
_PRONOUNS = {"she", "he", "it", "they", "we"}
_COMES = {"evaluates", "simplifies", "reduces", "rounds", "corresponds", "sums", "converges"}
"""Verbs that take `to`."""
_NO_VERBS = frozenset(_REFERRING.split())
"""Words whose number is not the statement of a sentence: `the pupils of class 9`, `a deck of 52`."""
_CONNECTING = """
so thus hence therefore then total answer final result solution ans and also in all altogether overall we get
conclusion summary finally accordingly consequently ultimately clearly combined grand sum number first second next
now boxed us usd eur gbp
"""
_CONNECTIVES = _FILLERS | frozenset(_CONNECTING.split())
_PREDICATE = re.compile(
    r"\s*(?:has|have|had|does|did|can|goes|divides|appears|ends|rounded)\b"
    r"|\s*(?:is|are|was|were)\b(?!\s+(?:(?:the|my|our|a)\s+)?"
    r"(?:(?:final|correct|right|total|required|only|least|smallest|largest|greatest|minimum|maximum|such|possible)\s+)*"
    r"(?:answer|total|result|solution|sum|number|value|amount|left|remaining|needed|required|correct|right|it)\b)",
    re.IGNORECASE,
)
"""Behind a number that is the subject of the sentence, and not the answer."""
_MODAL = frozenset(("may", "might", "could", "cannot", "can't", "couldn't", "not", "never"))
_DOUBTING = frozenset((_DENIALS + _HEDGES).split())
_CHANGING = _DOUBTING | frozenset((_BOUNDS + _ARITHMETIC + _AMOUNTS).split())
_CHANGING_NEARBY = _CHANGING - AMOUNTS
_CHANGING_BEHIND = _CHANGING - {"roots", "until", "till", "above", "below"}
_DENYING = (_DOUBTING) - _MODAL | {"not", "never", "cannot"}
_COUNTED = re.compile(
    r"\s*(?:[a-z]+,?\s+){0,2}the\s+(?:[a-z]+\s+){0,3}?(?:number|amount|total|probability|chance|sum|percentage|percent"
    r"|fraction|proportion|cost|price|value|length|width|height|area|volume|distance|time|age|weight|ratio|maximum|minimum"
    r"|largest|smallest|greatest|least|most|remaining|average|mean|set|points?|students|people|children)\b",
    re.IGNORECASE,
)
_CONTRASTS = {"but", "however", "instead", "rather", "unless", "wait", "oops", "if"}
"""Words that replace the text before them by the text after them."""
_DOUBTING_AHEAD = _DOUBTING - _CONTRASTS
_CHANGING_AHEAD = _CHANGING_NEARBY - _CONTRASTS
_VARIABLE = re.compile(r"(?<![a-zA-Z'/.])[b-hj-zB-HJ-Z](?![a-zA-Z'.])")
_CLAUSE = re.compile(r"[,;:(—–]|\s-\s")
_AHEAD = re.compile(
    r"(?:^\s*(?:of|to)(?: (?:the|her|his|their|its|all|these|those))?|^[-–—~]|(?:^|\d)\s*into"
    r"|\b(?:without|from|digits? of)"
    r"|\b(?:instead of|in place of|rather than|(?:number|all|any\w*|every\w*|none|nothing|one) but)"
    r"|\b(?:step|chapter|question|equation|problem|exercise|section|figure|theorem|lemma|example)s?\s*\(?"
    r"|^\s*\w+ (?:before|after|until|till|earlier than|later than)|\bnext after|\bdivi(?:sion|ding) by"
    r"|\bthe (?:first|last|next|previous|other)"
    r"|\bthan [A-Za-z]+'s"
    r"|\b(?:than|over|less|fewer|times|per|quarters?|(?<!add )(?<!adds )(?<!sum )(?<!sums )up to"
    r"|(?:number|integer|prime|multiple|square|one|term|digit|value)s? (?:\w+ )?"
    r"(?:after|before|following|preceding|above|below)"
    r"|(?:follows|precedes|following|preceding|(?:successor|predecessor|neighbou?r)s? (?:of|to)|next to)"
    r"|(?:short|shy) of|(?:far|different|away) from|includes?(?: both)?|off by|divisible by|base|\d point"
    r"|(?:out|multiples?|factors?|divisors?|products?|quotients?|squares?|cubes?|fraction|logarithm|parts?|portion|share|percent|percentage|rest|complement|quarters?|one|some|any|each|%)\s+of))\s*$",
    re.IGNORECASE,
)
"""Right in front of a number."""
_BEHIND = re.compile(
    r"^\s*(?:(?:out of(?! (?:the|these|those|her|his|their)\b)|over|short of|shy of|to the power|and up)\b"
    r"|(?:\w+ )?(?:less|fewer)\W*$"
    r"|and (?:a|one) (?:half|quarter)|(?:to|through) (?:one|\d)|‰)"
    r"|\b(?:more|less|fewer) than (?:that|this|it)\b|\bin base\b|^\s*point (?:\d|[a-z]+\W*$)"
    r"|\btoo (?:small|large|big|low|high|much|many|few|little|long|short|early|late)\b|\bquarters? of\b"
    r"|\btimes (?!(?:an?|as|more|each|every|per|in|during|on|that|this|longer|older|bigger|larger|faster|heavier)\b)",
    re.IGNORECASE,
)
_COMPUTING = re.compile(
    r"(?:[<≠≤≥±×÷+*/^√]|-\s?\(|\\sqrt\{?|(?<![=-])>|\\(?:neq?|leq?|geq?|lt|gt|pm|times|cdot|div|leqslant|geqslant)(?![a-zA-Z]))[\s$]*$"
)
_COMPUTED = re.compile(r"[\s$*_]*(?:\?|'s\b|[<>≠≤≥±×÷+/^]|\\(?:neq?|leq?|geq?|lt|gt|pm|times|cdot|div)(?![a-zA-Z]))")
_REFUTED = re.compile(
    r"[\s$*_,;:—–-]*(?:(?:but|and|though|although)\s+)?(?:which|that|this|it)"
    r"(?:\s+(?:is|was|seems|looks|must be|can(?:no|')?t be)|['’]s)\s+"
    r"(?:\w+ )?(?:wrong|incorrect|false|impossible|mistaken|(?:not|n't) (?:right|correct|possible|the answer|what)"
    r"|too \w+|an? (?:error|mistake|contradiction))\b"
    r"|[\s$*_,;:—–-]*(?:but |and |though |although )?"
    r"(?:(?:it|this|that) (?:fails|failed"
    r"|(?:do|does|did|is|was|can|could|will|would)(?:n't|not| not))"
    r"|which (?:fails|(?:does|did)(?:n't| not) (?:work|fit|satisfy|hold|match)))\b",
    re.IGNORECASE,
)
_BOLD_STARTS = re.compile(r"(?:^|(?<=\s))\*\*\\?[$€£¥₹]?$")
_BOLD_ENDS = re.compile(r"(?<=\S)\*\*(?=:?\s*\$?$)")
_APPOSITION_ENDS = re.compile(r"^\s*,(?=\s+(?:is|are|was|were|does|did|cannot|can't|fails)\b)", re.IGNORECASE)
"""Behind a number that only names the subject: `My first guess, 15, was wrong`."""
_LEFT_OPEN = re.compile(
    r"[^.?!]{0,80}\b(?:so|and|then)\s(?:[a-z']+\s){1,4}(?:none|nothing|some|several|the rest|a few)\W*$", re.IGNORECASE
)
"""Behind a number that is not the end of the story: `24 clips and gave away some`."""
_IMAGINED = re.compile(
    r"(?:let|consider|suppose|assume|assuming|note|notice|observe|recall|try|check|test|we (?:try|tried|check|test)"
    r"|if(?=[^,]*$))\b",
    re.IGNORECASE,
)
_CONCLUDED = re.compile(r"\b(?:so|thus|hence|therefore|then|gives|means|get)\b", re.IGNORECASE)
_SIGN_AT_END = re.compile(r"[=:\u2248]\W{0,4}$")
_PAST = re.compile(r"\b(?:used to|(?:would|could|should|might) have)(?=\s+be|\s*$)", re.IGNORECASE)
_OPINION = re.compile(r"\bI(?:'d|’d| would)? (?:think|believe|reckon|say|get|got|found|find|obtain)\s*[*$]*$")
_ATTRIBUTED = re.compile(
    r"\b(?:some|many|most|others?|people|they|one|someone|students?)\s+(?:\w+\s+)?(?:say|think|believe|claim|argue|guess|assume)s?\b",
    re.IGNORECASE,
)
"""In front of a claim: it is not the writer's."""
_WHO_DID_NOT = re.compile(
    r"^\s*[a-z]{3,20} (?:(?:did|do|have|had)(?: not|n't)) "
    r"(?!(?:work|fit|satisfy|hold|match|suffice|make|give|equal|count|add|solve|worked|been)\b)"
    r"|^\s*(?:of the )?(?:students?|people|persons?|candidates|pupils|participants|kids|children|boys|girls|athletes)"
    r" (?:fail|failed|did(?: not|n't) pass)\W*$"
    r"|^\s*[a-z]{3,20} (?:fail|failed) (?:the|an?|their|to|in|at) (?!(?:test|satisfy|work|fit|hold|match|condition)\b)",
    re.IGNORECASE,
)
"""Behind a number: the counted things, and what they did not do."""
_REMARK = re.compile(r"[\s$*_]*\((?!because|since|as\b|given)([^()]{0,200})\)")
_POINT = re.compile(r"\b(?:the|a|at) point\b")
_VALUE_OF = re.compile(r"(?<=\bvalue of )[a-zA-Z](?![a-zA-Z])")
_NAMES = re.compile(
    r"\b(?:with|in|take|study|like|play|have|own|of|for|chose|speak|do|pass) neither\b|(?<=\w )May\b"
    r"|\b(?:power|root|remainder|half|double|triple|inverse|opposite|log)[- ](?:rule|test|theorem|series|laws?|sides?"
    r"|angles?|integral|function|life|number)\b"
    r"|(?<=the )(?:first|second|other|last) half\b(?! of)|(?<=the )(?:third|fourth|fifth|sixth|seventh|eighth|ninth"
    r"|tenth) (?!of\b)(?=[a-z])"
)
"""The month, and the half of a match: neither leaves a number open or computes with it."""
_FOLLOWS = re.compile(r"^.*(?:[,;:]\s*(?:and )?(?:so|thus|hence|therefore|then)\b,?|\s[—–-])\s*", re.IGNORECASE)
"""In front of what follows from it."""
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_PLAIN = re.compile(r"(?:[^\W\d_]|[\s.,;:'\"“”/&°]|(?<=[a-zA-Z])-(?=[a-zA-Z])|(?<=[a-zA-Z]{2})\^[23](?!\d)){0,400}")


def conclusion(text: str) -> str:
    """What follows from the rest of a sentence: `B` of `A is wrong, so B`. All of it if nothing does."""
    return _FOLLOWS.sub("", text)


def words(text: str) -> list[str]:
    return _WORD.findall(_NAMES.sub("", text).lower())


def plain(text: str) -> bool:
    """Whether text is words and nothing else: no digit, no operator, no variable."""
    return bool(_PLAIN.fullmatch(text)) and not _VARIABLE.search(_VALUE_OF.sub("", text))


def harmless_behind(text: str) -> bool:
    """Whether words behind a number leave it as it is: `of apples`, `to the nearest integer`."""
    if not text.strip(" .,;:"):
        return True
    text = _WHO_DID_NOT.sub("", text)
    return (
        plain(text)
        and not _changed(words(text), _CHANGING_BEHIND)
        and not (_BEHIND.search(text) or _LEFT_OPEN.match(text))
    )


def harmless_ahead(text: str) -> bool:
    """Whether words in front of a number leave it as it is: `Kylar needs to pay`."""
    if not text.strip():
        return True
    return plain(text) and not _changed(words(text), _CHANGING) and not (_AHEAD.search(text) or _elsewhere(text))


def doubtful(text: str) -> bool:
    """Whether text denies something or leaves it open."""
    return "?" in text or _changed(words(text), _DOUBTING)


def taken_back(ahead: str) -> bool:
    """Whether words in front of a claim take it back: `I doubt that the answer`, `if x`, `it may`.

    In `the number of children who do not play` they belong to the counted things.
    """
    found = words(ahead)
    counted = _COUNTED.match(ahead)
    outer = words(ahead[: counted.end()]) if counted else found
    return "?" in ahead or _elsewhere(ahead) or not _MODAL.isdisjoint(found[-1:]) or _changed(outer, _DENYING)


def refuted(behind: str) -> bool:
    """Whether the text after an answer says that it is wrong: `, which is impossible`."""
    return bool(_REFUTED.match(behind))


def imagined(ahead: str) -> bool:
    """Whether a sentence only looks at a number, and concludes nothing: `Suppose x = 7`."""
    return bool(_IMAGINED.match(ahead)) and not _CONCLUDED.search(ahead)


def changes_nearby(text: str) -> bool:
    """Whether the last words in front of a number change it, in a text that may hold anything further ahead."""
    text = _BOLD_ENDS.sub("", _BOLD_STARTS.sub("", text))
    found = words(_POINT.sub("", text))
    return bool(_PAST.search(text)) or (
        _changed(found[-5:], _DOUBTING_AHEAD)
        or _changed(found[-3:], _CHANGING_AHEAD)
        or bool(_AHEAD.search(text) or _COMPUTING.search(text))
    )


def changes_behind(text: str) -> bool:
    """Whether the clause behind a number changes it."""
    if not text.strip():
        return False
    text = _APPOSITION_ENDS.sub("", text)
    clause = _WHO_DID_NOT.sub("", _CLAUSE.split(text)[0])
    found = words(clause)
    scaled = not AMOUNTS.isdisjoint(found[:1])
    remark = _REMARK.match(text)
    signs = _COMPUTED.match(text) or (remark and doubtful(remark[1])) or refuted(text) or _LEFT_OPEN.match(text)
    return bool(signs) or scaled or _changed(found, _CHANGING_NEARBY & _CHANGING_BEHIND) or bool(_BEHIND.search(clause))


def leads(ahead: str) -> bool:
    """Whether words before a number make it a sentence's statement: a verb, a colon, an equals sign, or nothing."""
    found = words(ahead)
    if found == ["the"]:
        return False
    if _SIGN_AT_END.search(ahead) or _OPINION.search(ahead) or _CONNECTIVES.issuperset(found):
        return True
    if any(word in _VERBS or "'" in word for word in found):
        return True
    while found and (found[-1] in _FILLERS or found[-1] in _PREPOSITIONS or (found[-1] == "in" and "of" not in found)):
        found.pop()
    if len(found) > 1 and found[0] in _PRONOUNS:
        return True
    if found[-1:] == ["to"] and not _COMES.isdisjoint(found):
        return True
    if found[-1:] == ["of"] and not _VALUES.isdisjoint(found[-2:]):
        return True
    if len(found) < 2 or found[-1] in _NO_VERBS:
        return False
    return len(found) > 2 or found[-1].endswith(("s", "ed"))  # a verb that is not listed: `She crochets`


def is_subject(behind: str) -> bool:
    """Whether words behind a number say something about it: `19 has two digits`."""
    return bool(_PREDICATE.match(behind))


def _elsewhere(ahead: str) -> bool:
    """Whether words in front of a claim put it in the past, or in the mouth of others."""
    return bool(_PAST.search(ahead) or _ATTRIBUTED.search(ahead))


def _changed(found: list[str], changing: frozenset[str]) -> bool:
    return any(word in changing or word.endswith("n't") for word in found)
