"""English, as far as queries and captions need it: words that name something and words that do not,
word forms, general words, the canonical form of a query, spelling, edits of known effect, and
whether a text is English at all.

The word lists are small on purpose, so that every entry is safe. All other modules ask this one.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

_WORD = re.compile(r"[\w'-]+")
_ARTICLE = re.compile(r"\b(a)n? (?=(\S))", re.IGNORECASE)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS = _words(
    """
    a an the of in on at to with and or is are was were be been being am this that these those there
    here it its his her their our my your he she they we i me you as by for from into onto over up
    down out off while who which what where when some several many few any very really hers them him
    has have had having near next front top side back other another each all both so not no but do
    does did doing just also along around through across behind under without then than too
    """
)
"""Words that name nothing one could see."""
INDEFINITE = _words("something somewhere somebody thing look only")
"""Words, in their base form, that name anything at all."""


# ---- words and their forms ----

_IRREGULAR = {
    "men": "man", "women": "woman", "children": "child", "feet": "foot", "teeth": "tooth",
    "geese": "goose", "mice": "mouse", "buses": "bus", "knives": "knife", "leaves": "leaf",
    "loaves": "loaf", "shelves": "shelf", "wolves": "wolf", "calves": "calf",
}  # fmt: skip


def words_of(text: str) -> list[str]:
    """The words of a text, lower-cased.

    >>> words_of("A man's T-shirt, red.")
    ['a', "man's", 't-shirt', 'red']
    """
    return _WORD.findall(text.lower())


def base(word: str) -> str:
    """A noun without its plural.

    >>> [base(w) for w in ("dogs", "puppies", "watches", "women", "tennis", "grass", "bus")]
    ['dog', 'puppy', 'watch', 'woman', 'tennis', 'grass', 'bus']
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "xes", "sses", "zzes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def content_words(text: str) -> list[str]:
    """Words that name something, in their base form, each once.

    >>> content_words("Two dogs and a dog on the beach"), content_words("of the and a")
    (['two', 'dog', 'beach'], [])
    """
    named = (base(word) for word in words_of(text) if word not in STOP_WORDS)
    return list(dict.fromkeys(named))


def known_share(text: str, unknown: Sequence[str]) -> float:
    """The share of a query's content words that are not among the unknown ones; 0 for a query
    that has none.

    >>> known_share("a red dog", ["dog"]), known_share("of the and a", [])
    (0.5, 0.0)
    """
    content, strange = content_words(canonical(text)), {base(word.lower()) for word in unknown}
    return sum(word not in strange for word in content) / len(content) if content else 0.0


def mostly_known(text: str, unknown: Sequence[str]) -> bool:
    """Whether a model that does not know these words knows what a query is about.

    >>> mostly_known("a red dog", ["dog"]), mostly_known("a dog", ["dog"])
    (True, False)
    """
    return known_share(text, unknown) >= 0.5


# ---- spelling ----


def spelling(word: str, known: Mapping[str, int]) -> str | None:
    """The known word that was probably meant: one edit away, the most frequent of those; or else
    one of the same letters, or one that is very alike. In a word of up to four letters no letter is
    replaced: "hund" is not "hand".

    Args:
        known: word → how often it occurs.

    >>> known = {"mountain": 90, "fountain": 9, "dog": 500, "skateboarding": 12, "bicycle": 80}
    >>> [spelling(w, known) for w in ("moutain", "dgo", "skatebording", "bycicle", "dig", "qwxz")]
    ['mountain', 'dog', 'skateboarding', 'bicycle', None, None]
    """
    word = base(word.lower())
    if word in known or len(word) < 3:
        return None
    near = [
        other
        for other in set(_edits(word))
        if other in known
        and (len(word) > 4 or len(other) != len(word) or sorted(other) == sorted(word))
    ]
    if near:
        return max(near, key=lambda other: (known[other], other))
    same = [other for other in known if other[:1] == word[:1] and abs(len(other) - len(word)) < 3]
    swapped = [other for other in same if len(word) > 4 and sorted(other) == sorted(word)]
    if swapped:
        return max(swapped, key=lambda other: (known[other], other))
    alike = difflib.get_close_matches(word, same, n=1, cutoff=0.84)
    return alike[0] if alike else None


def _edits(word: str) -> Iterator[str]:
    """All words one edit away: a letter left out, swapped with the next, another, one more."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    for at in range(len(word) + 1):
        left, right = word[:at], word[at:]
        if right:
            yield left + right[1:]
            yield from (left + letter + right[1:] for letter in letters)
        if len(right) > 1:
            yield left + right[1] + right[0] + right[2:]
        yield from (left + letter + right for letter in letters)


# ---- canonical form ----

_PHOTO = r"(?:photo|picture|image|photograph|pic|snapshot)"
_FRAMES = (
    r"(?:please )?(?:show|find|give|get) me",
    r"(?:i am|i'm|we are) looking for",
    r"i (?:want|would like|need) (?:to see )?",
    r"(?:i|we|you) (?:can )?see",
    rf"(?:an?|the|this|some) (?:nice |good |close[- ]up )?{_PHOTO}s? "
    r"(?:of|showing|that shows|with)",
    rf"{_PHOTO}s? of",
    rf"(?:this|the) {_PHOTO} shows",
    r"there (?:is|are)",
    r"here (?:is|are)",
    r"look at",
    r"search for",
)
_TAILS = (
    rf"(?:in|on) (?:the|this|a) {_PHOTO}",
    r"(?:is|are) (?:shown|seen|visible|depicted)",
    r"clearly",
    r"please",
    r"thank you",
    r"thanks",
)
_FRAME = re.compile(rf"^\W*(?:{'|'.join(_FRAMES)})\W+(?=\w)", re.IGNORECASE)
_TAIL = re.compile(rf"(?<=\w)\W+(?:{'|'.join(_TAILS)})\W*$", re.IGNORECASE)
_INTENSIFIER = re.compile(
    r"\b(?:very|really|basically|actually|simply|quite|kind of|sort of)\s+(?=\w)", re.IGNORECASE
)
SHORT = 4
"""Words of a text without its articles that does not need them, at most."""
_WITH_PHOTO = _words("taking holding showing viewing making posing framed family")
_LAST_PHOTO = re.compile(rf"(?<=\w)\W+{_PHOTO}s?\W*$", re.IGNORECASE)
_QUOTES = re.compile(r"[\"“”„«»`]|(?<!\w)['‘’]|['‘’](?!\w)")
_ENDS = re.compile(r"^[\s.,;:!?*…-]+|[\s.,;:!?*…-]+$")
_ARTICLES = re.compile(r"\b(?:an?|the)\s+(?=\w)", re.IGNORECASE)


@lru_cache(256)  # a search needs it twice: to encode the query, and to judge what is known of it
def canonical(text: str) -> str:
    """A query without what adds nothing to it: quotes, "!!", frames ("a photo of …", "I see …"),
    a last "photo", intensifiers, repetitions, articles of a short one; the words of a simple phrase
    ("car red") in one order.

    Two queries with one canonical form get one answer. What would leave no content word behind is
    kept as it is, so that "a photo of it" stays itself.

    >>> canonical("please show me a photo of a very red circle, a red circle in this picture")
    'red circle'
    >>> canonical('I see "the man and a woman"!!'), canonical("a photo"), canonical("dog dog dog")
    ('man and woman', 'photo', 'dog')
    >>> {canonical(text) for text in ("car red", "A red car", "red car photo")}
    {'red car'}
    """
    before, short = None, " ".join(_ENDS.sub("", _QUOTES.sub("", text)).split())
    while before != short:
        before = short
        for pattern in (_FRAME, _TAIL, _INTENSIFIER):
            cut = _ENDS.sub("", pattern.sub("", short))
            if cut != short and content_words(cut):
                short = cut
        cut = _LAST_PHOTO.sub("", short)
        if cut != short and _adds_nothing(cut):
            short = cut
        short = _without_articles(_without_repetition(short))
    return _in_order(short) or " ".join(text.split())


def _adds_nothing(before: str) -> bool:
    """Whether "photo" after a text adds nothing: it does in "two photos", "an old photo", "taking a
    photo"."""
    words = words_of(before)
    told = all(word in ADJECTIVES or word in _NUMBERS or word in STOP_WORDS for word in words)
    return not told and words[-1] not in STOP_WORDS and words[-1] not in _WITH_PHOTO


def _without_articles(text: str) -> str:
    """A short text without its articles: "dog" is "a dog". A sentence keeps them, as it is read
    better with them."""
    cut = _ARTICLES.sub("", text)
    return cut if len(cut.split()) <= SHORT else text


def _in_order(text: str) -> str:
    """The words of a simple phrase in one order: of adjectives with one noun, and of two things
    with "and". Two nouns side by side stay as they are, as their order is their meaning."""
    words = text.lower().split()
    if not 2 <= len(words) <= 4 or "'" in text or text != " ".join(_WORD.findall(text)):
        return text
    if len(words) == 3 and words[1] == "and" and not STOP_WORDS & {words[0], words[2]}:
        return " and ".join(sorted((words[0], words[2])))
    like = [word for word in words if word in ADJECTIVES or word in _NUMBERS]
    rest = [word for word in words if word not in like]
    if len(rest) != 1 or rest[0] in STOP_WORDS:
        return text
    return " ".join([*sorted(like, key=lambda word: (word not in _NUMBERS, word)), *rest])


def _without_repetition(text: str) -> str:
    """Each run of words that is repeated at once, also after "and" or a comma, only once."""
    words = list(_WORD.finditer(text))
    plain = [m.group().lower() for m in words]
    for size in range(1, len(words) // 2 + 1):
        for start in range(len(words) - 2 * size + 1):
            again = start + size
            joined = plain[again] == "and" and again + 1 + size <= len(words)
            second = again + 1 if joined else again
            if plain[start] != plain[second]:
                continue
            if plain[start:again] == plain[second : second + size]:
                end = second + size
                rest = text[words[end].start() :] if end < len(words) else ""
                return _without_repetition(f"{text[: words[again - 1].end()]} {rest}".strip())
    return text


# ---- general words ----

_CATEGORIES = {
    "person, human, individual": "man woman boy girl guy lady child kid toddler baby player surfer "
    "skier skater skateboarder snowboarder rider cyclist biker climber catcher batter pitcher chef "
    "cook farmer worker policeman officer soldier bride groom teenager adult gentleman male female",
    "people, humans, group of people": "men women boys girls kids children guys ladies players "
    "surfers skiers couple skateboarders snowboarders riders workers soldiers adults teenagers",
    "animal, creature, mammal": "dog cat horse cow sheep elephant giraffe zebra bear puppy kitten "
    "goat pig monkey lion deer rabbit bull lamb",
    "animals, creatures, mammals": "dogs cats horses cows elephants giraffes zebras bears puppies "
    "kittens goats monkeys cattle",
    "animal, creature, living thing": "bird duck goose seagull parrot owl pigeon",
    "animals, creatures, wildlife": "birds ducks geese seagulls parrots pigeons",
    "pet, domestic animal": "dog cat puppy kitten",
    "wild animal, wildlife, safari animal": "elephant giraffe zebra bear lion deer monkey",
    "farm animal, livestock": "cow sheep goat pig horse lamb bull",
    "vehicle, transportation, means of transport": "car bus truck train motorcycle bike bicycle "
    "van boat airplane plane jet taxi scooter tractor motorbike suv helicopter ship trolley",
    "vehicles, transportation, traffic": "cars buses trucks trains motorcycles bikes bicycles vans "
    "boats airplanes planes jets taxis scooters tractors motorbikes ships",
    "aircraft, flying vehicle": "airplane plane jet helicopter airplanes planes jets",
    "public transport, mass transit": "bus train buses trains trolley tram subway",
    "watercraft, vessel": "boat ship canoe kayak sailboat boats ships",
    "food, meal, something to eat": "pizza sandwich cake donut salad hamburger burger soup bread "
    "pasta meat chicken rice cheese cookie pie dessert steak hotdog fries",
    "food, baked goods, sweets": "cake donut cookie pie pastry muffin cupcake donuts cookies "
    "pastries bread",
    "food, fruit, produce": "banana apple strawberry pineapple lemon grape pear bananas apples "
    "oranges strawberries",
    "food, vegetable, produce": "broccoli carrot carrots tomato tomatoes lettuce potato onion "
    "vegetables",
    "drink, beverage": "coffee tea beer wine juice milk water",
    "furniture, piece of furniture": "chair couch sofa bench table desk bed dresser stool bookcase "
    "chairs tables couches benches beds",
    "device, electronics, electronic equipment": "laptop computer phone television tv cellphone "
    "camera tablet monitor keyboard mouse remote laptops computers phones",
    "appliance, household appliance, kitchen equipment": "oven stove refrigerator fridge microwave "
    "toaster blender dishwasher freezer",
    "fixture, bathroom fixture, plumbing": "toilet sink bathtub shower urinal toilets sinks",
    "clothing, garment, apparel": "shirt jacket hat dress coat sweater suit pants jeans vest "
    "shorts t-shirt uniform skirt tie",
    "accessory, personal item": "umbrella backpack purse handbag suitcase luggage glasses "
    "sunglasses helmet umbrellas bag",
    "building, structure, architecture": "house church tower castle barn hotel skyscraper "
    "restaurant store shop bridge buildings",
    "container, vessel, tableware": "bowl cup vase bottle glass basket bucket mug jar plate dish",
    "utensil, kitchen tool, cutlery": "fork knife spoon spatula chopsticks scissors",
    "plant, vegetation, nature": "tree flower bush palm trees flowers bushes grass plants",
    "toy, plaything": "teddy doll kite ball kites balloon",
    "sign, signage": "stoplight billboard signs stop",
    "colored, colorful": "red blue green yellow orange pink purple brown",
    "moving, in motion, activity": "running walking riding jumping swimming skating surfing skiing "
    "racing flying driving",
    "sport, game, physical activity": "baseball tennis soccer football basketball frisbee hockey "
    "volleyball golf rugby skateboarding snowboarding skiing surfing",
    "outdoor activity, outdoor sport, recreation": "skiing snowboarding surfing hiking climbing "
    "frisbee skateboarding kayaking",
    "winter sport, snow sport": "skiing snowboarding ski skis snowboard skier snowboarder skiers",
    "water sport, water activity": "surfing surfboard surfer wakeboarding kayaking swimming "
    "sailing",
    "equipment, sports equipment, gear": "surfboard skateboard snowboard skis racket bat frisbee "
    "glove skateboards surfboards",
    "place, scene, location": "beach park street field forest kitchen bathroom bedroom mountain "
    "lake river city yard road",
    "room, indoor scene, interior": "kitchen bathroom bedroom office classroom",
    "outdoors, landscape, nature": "beach mountain forest lake river ocean hill field snow desert",
    "water, body of water": "lake river ocean sea pool pond",
    "shape": "circle square triangle diamond star cross heart moon disc crescent",
    "shapes": "circles squares triangles diamonds stars crosses hearts moons discs crescents",
}
GENERAL: dict[str, tuple[str, ...]] = {}
"""Everyday words, and more general terms that are true of the same photo."""
for _terms, _members in _CATEGORIES.items():
    for _word in _members.split():
        GENERAL[_word] = GENERAL.get(_word, ()) + tuple(_terms.split(", "))

_COUNTABLE = _words("person people animal animals vehicle vehicles shape shapes")
HYPERNYMS = {word: terms[0] for word, terms in GENERAL.items() if terms[0] in _COUNTABLE}
"""Word → a more general one that can take its place in a sentence."""


def with_articles(text: str) -> str:
    """A text with "a" or "an" by the first letter of what follows.

    >>> with_articles("An dog and a animal")
    'A dog and an animal'
    """
    return _ARTICLE.sub(lambda m: m[1] + ("n " if m[2].lower() in "aeiou" else " "), text)


def meant_by(text: str) -> set[str]:
    """The content words of a text, and more general ones for them: what else it is about.

    >>> sorted(meant_by("two dogs"))
    ['animal', 'dog', 'two']
    """
    general = (HYPERNYMS.get(word, "") for word in words_of(text))
    return {*content_words(text), *content_words(" ".join(general))}


# ---- edits whose effect is known ----

FILLERS = (
    "a photo of {}",
    "a picture of {}",
    "an image of {}",
    "there is {}",
    "please show me {}",
    "i am looking for {}",
    "{} in this picture",
    "{}, please",
    "{} {}",
    "{}, {}, {}",
    "I see {}",
    "{} photo",
    "{}!!",
    '"{}"',
)
"""Frames and repetitions that must change nothing."""

_NUMBERS = _words("one two three four five six seven eight nine ten")
ADJECTIVES = _words(
    """
    red orange yellow green blue purple pink brown black white gray grey golden violet crimson
    scarlet small little tiny large big huge medium-sized young old elderly tall short long
    wooden dirty wet snowy sandy grassy rocky busy crowded empty striped dotted spotted plain
    solid hollow plaid furry fluffy colorful bright dark blond blonde
    """
)


def truncated(text: str, keep: int = 5, least: int = 8) -> str | None:
    """The first words of a caption of at least ``least`` words; ``None`` for a shorter one.

    >>> truncated("a brown dog runs through the deep white snow")
    'a brown dog runs through'
    """
    words = text.split()
    return " ".join(words[:keep]) if len(words) >= least else None


def generalized(text: str) -> str | None:
    """Every noun of ``HYPERNYMS`` replaced by its general word; ``None`` if there is none.

    >>> generalized("A man rides a bike"), generalized("an airplane"), generalized("a tree")
    ('A person rides a vehicle', 'a vehicle', None)
    """
    return _edited(text, lambda word: HYPERNYMS.get(word, word))


def without_adjectives(text: str) -> str | None:
    """``ADJECTIVES`` left out; ``None`` if there is none, or where one stands for a noun.

    >>> without_adjectives("an old red bus on a busy street"), without_adjectives("something red")
    ('a bus on a street', None)
    """
    words = words_of(text)
    followed = [*words[1:], "the"]
    for word, after in zip(words, followed, strict=True):
        if word in ADJECTIVES and after in STOP_WORDS:
            return None
    return _edited(text, lambda word: "" if word in ADJECTIVES else word)


def _edited(text: str, edit: Callable[[str], str]) -> str | None:
    before = text.split()
    after = []
    for word in before:
        bare = word.strip(".,;:!?\"'")
        new = edit(bare.lower())
        after.append(word if new == bare.lower() else word.replace(bare, new) if new else "")
    if after == before:
        return None
    return with_articles(" ".join(word for word in after if word))


# ---- other languages ----

_FUNCTION_WORDS = {
    "German": "der die das dem den des und ein eine einen einem einer eines mit ist sind auf im am "
    "vor von vom zum zur zwei drei bei aus nach durch über neben hinter unter während sich steht "
    "sitzt für nicht auch wird einige mehrere zu wie / in an was so her",
    "French": "le la les l d un une des et dans sur avec est sont deux trois qui du au aux par de "
    "en pour devant derrière près à ses sa son leur il elle se que plusieurs / on a as or me but",
    "Spanish": "el la los las un una unos unas y con en de del al está están dos tres por sobre "
    "para que su sus mientras junto se muy lo / a no me he has",
    "Italian": "il lo la gli le l un una uno e ed con di del della dello dei delle nel nella sul "
    "sulla al alla che sono due tre è da dal per su mentre si / a in i me no or",
    "Portuguese": "o os um uma uns umas e com em de da do das dos na nas nos dois duas três está "
    "estão por para que ao à seu sua enquanto se não / a as no me i",
    "Dutch": "de het een en met van op twee drie zijn aan naar bij uit door voor achter naast die "
    "dat er staat zit tijdens te om zich niet ook wordt / in is of was over we me under",
}
"""Words that tell a language and, after the slash, those that it shares with English, which do not
tell it."""
_LANGUAGES = {
    name: (frozenset(own.split()), frozenset(shared.split()))
    for name, (own, shared) in ((n, words.split("/")) for n, words in _FUNCTION_WORDS.items())
}
_LEAST = 0.15
"""The least share of a text's words that tell its language, if that is not English."""


def language_of(text: str) -> str | None:
    """The language that a text is in, or the script of one that is not Latin; ``None`` if it does
    not tell.

    Another language than English takes two different words that tell it, and none that is only
    English.

    >>> [language_of(t) for t in ("the dog is on the beach", "der Hund und die Katze", "dog", "猫")]
    ['English', 'German', None, 'CJK']
    >>> language_of("Two people in BMX gear in a redwood forest"), language_of("el perro y el gato")
    ('English', 'Spanish')
    """
    if not text.isascii():
        scripts = Counter(unicodedata.name(c, "?").split()[0] for c in text if c.isalpha())
        if scripts and (script := scripts.most_common(1)[0][0]) != "LATIN":
            return script if script == "CJK" else script.capitalize()
    words = [part for word in words_of(text) for part in word.split("'") if part]
    english = [word for word in words if word in STOP_WORDS]
    own = {name: [w for w in words if w in tell] for name, (tell, _) in _LANGUAGES.items()}
    most = max(map(len, own.values()))
    if len(english) >= 2 and len(english) > 3 * most:
        return "English"
    first = [name for name, told in own.items() if len(told) == most]
    tell, shared = _LANGUAGES[first[0]]
    clear = len(first) == 1 and len(set(own[first[0]])) >= 2 and most >= _LEAST * len(words)
    return first[0] if clear and tell | shared >= set(english) else None


# ---- lists of queries ----


def _listed(name: str) -> tuple[str, ...]:
    path = Path(__file__).parent / "lists" / f"{name}.txt"
    return tuple(path.read_text(encoding="utf-8").splitlines())


EVERYDAY = _listed("everyday")
"""Everyday photos: out of the domain of a model of drawn shapes."""

OTHER_DOMAINS = _listed("other_domains")
"""Queries that neither everyday photos nor drawn shapes answer; for tests, nothing was chosen by
them since version 0.2."""

OTHER_DOMAINS_DEV = _listed("other_domains_dev")
"""Others of the same kind, to choose by: how familiarity is measured was decided with these."""


Length = Literal["1", "2", "3-5", "whole"]


def length_of(text: str) -> Length:
    """The length class of a query, by its words.

    >>> [length_of(t) for t in ("dog", "a dog", "a dog in snow", "a dog runs in the deep snow")]
    ['1', '2', '3-5', 'whole']
    """
    words = len(text.split())
    return "1" if words <= 1 else "2" if words == 2 else "3-5" if words <= 5 else "whole"
