"""What is said and asked about people and what they build, found, cook and meet: also ferries, guilds, animals."""

from __future__ import annotations

from tools.demo_world.kinds import Comparison, Kind, Relation

PERSON = Kind(
    name="person",
    title="{n}",
    mentions=("{n}",),
    intro="{t} is {job} who",
    relations=(
        Relation(
            "birthplace",
            "town",
            ("was born in the town of {v}", "was born in {v}"),
            ("Where was {s} born?", "In which town was {s} born?"),
            ("the town where {s} was born",),
        ),
        Relation(
            "born",
            "number",
            ("was born in {v}", "was born in the year {v}"),
            ("When was {s} born?", "In which year was {s} born?"),
            span=(1385, 1429),
        ),
        Relation(
            "invention",
            "invention",
            ("invented the {v}", "is the inventor of the {v}"),
            ("What did {s} invent?", "Which thing was invented by {s}?"),
        ),
        Relation(
            "instrument",
            "instrument",
            ("plays the {v}", "loves to play the {v}"),
            ("Which instrument does {s} play?", "What is the instrument of {s}?"),
        ),
        Relation(
            "pet",
            "pet",
            ("has a pet {v}", "keeps a {v} as a pet"),
            ("What pet does {s} have?", "Which animal does {s} keep as a pet?"),
        ),
    ),
    hidden=("invention", "instrument", "pet"),
    comparison=Comparison(
        "born", ("Who is younger, {a} or {b}?", "Who was born later, {a} or {b}?"), ("Who was born first, {a} or {b}?",)
    ),
)

FERRY = Kind(
    name="ferry",
    title="the {n}",
    mentions=("the ferry {n}", "the {n}"),
    intro="{t} is a ferry that",
    relations=(
        Relation(
            "builder",
            "person",
            ("was built by {v}", "was designed and built by {v}"),
            ("Who built {s}?", "Who was the builder of {s}?"),
            ("the builder of {s}", "the person who built {s}"),
        ),
        Relation(
            "launched",
            "number",
            ("was launched in {v}", "was launched in the year {v}"),
            ("When was {s} launched?", "In which year was {s} launched?"),
            span=(1450, 1484),
        ),
        Relation(
            "cargo",
            "goods",
            ("carries {v}", "carries a cargo of {v}"),
            ("Which cargo does {s} carry?", "What is the cargo of {s}?"),
        ),
        Relation(
            "figurehead",
            "figurehead",
            ("has a {v} as its figurehead", "has a wooden {v} as a figurehead"),
            ("What is the figurehead of {s}?", "Which figurehead does {s} have?"),
        ),
        Relation(
            "sails",
            "colour",
            ("has {v} sails", "sails under {v} sails"),
            ("What colour are the sails of {s}?", "Which colour are the sails of {s}?"),
        ),
    ),
    hidden=("cargo", "figurehead", "sails"),
    comparison=Comparison(
        "launched",
        ("Which ferry is newer, {a} or {b}?", "Which ferry was launched later, {a} or {b}?"),
        ("Which ferry is older, {a} or {b}?", "Which ferry was launched first, {a} or {b}?"),
    ),
)

GUILD = Kind(
    name="guild",
    title="the {n} Guild",
    mentions=("the {n} Guild",),
    intro="{t} is a society that",
    relations=(
        Relation(
            "founder",
            "person",
            ("was founded by {v}", "was founded by its first master {v}"),
            ("Who founded {s}?", "Who was the founder of {s}?"),
            ("the founder of {s}", "the person who founded {s}"),
        ),
        Relation(
            "founded",
            "number",
            ("first met in {v}", "has existed since {v}"),
            ("In which year did {s} first meet?", "Since when has {s} existed?"),
            span=(1450, 1484),
        ),
        Relation(
            "trade",
            "trade",
            ("has {v} as its members", "has only {v} as members"),
            ("Who are the members of {s}?", "Which people are members of {s}?"),
        ),
        Relation(
            "emblem",
            "emblem",
            ("has a {v} as its emblem", "uses a {v} as its emblem"),
            ("What is the emblem of {s}?", "Which emblem does {s} have?"),
        ),
        Relation(
            "cloak",
            "colour",
            ("gives its members {v} cloaks", "has {v} cloaks for its members"),
            ("What colour are the cloaks of {s}?", "Which colour are the cloaks of {s}?"),
        ),
    ),
    hidden=("trade", "emblem", "cloak"),
    comparison=Comparison("founded", ("Which is younger, {a} or {b}?",), ("Which is older, {a} or {b}?",)),
)

FESTIVAL = Kind(
    name="festival",
    title="{n}",
    mentions=("the festival {n}", "{n}"),
    intro="{t} is a festival that",
    relations=(
        Relation(
            "town",
            "town",
            ("is held in the town of {v}", "takes place in {v}"),
            ("In which town is {s} held?", "Where does {s} take place?"),
            ("the town where {s} is held",),
        ),
        Relation(
            "dish",
            "dish",
            ("is the time to eat {v}", "has {v} as its festive dish"),
            ("What is the festive dish of {s}?", "Which dish is eaten at {s}?"),
            ("the dish eaten at {s}",),
        ),
        Relation(
            "month",
            "month",
            ("is celebrated in {v}", "is held every {v}"),
            ("In which month is {s} celebrated?", "When is {s} celebrated?"),
        ),
        Relation(
            "contest",
            "contest",
            ("is known for its contest in {v}", "has a contest in {v}"),
            ("What is the contest at {s}?", "Which contest does {s} have?"),
        ),
        Relation(
            "prize",
            "prize",
            ("gives a {v} as its prize", "has a {v} as its first prize"),
            ("What is the prize at {s}?", "Which prize is given at {s}?"),
        ),
    ),
    hidden=("month", "contest", "prize"),
)

DISH = Kind(
    name="dish",
    title="{n}",
    mentions=("the dish {n}", "{n}"),
    intro="{t} is a dish that",
    relations=(
        Relation(
            "cook",
            "person",
            ("was first cooked by {v}", "was created by {v}"),
            ("Who first cooked {s}?", "Who created {s}?"),
            ("the creator of {s}", "the cook who created {s}"),
        ),
        Relation(
            "ingredient",
            "ingredient",
            ("is mainly made of {v}", "has {v} as its main ingredient"),
            ("Of what is {s} mainly made?", "What is the main ingredient of {s}?"),
        ),
        Relation(
            "spice",
            "spice",
            ("is seasoned with {v}", "gets its taste from {v}"),
            ("With which spice is {s} seasoned?", "Which spice is in {s}?"),
        ),
        Relation(
            "drink",
            "drink",
            ("is eaten with a glass of {v}", "is best with a drink of {v}"),
            ("What is the best drink with {s}?", "Which drink goes with {s}?"),
        ),
        Relation(
            "vessel",
            "vessel",
            ("is served in a {v}", "comes to the table in a {v}"),
            ("What is {s} served in?", "In what is {s} served?"),
        ),
    ),
    hidden=("spice", "drink", "vessel"),
)

ANIMAL = Kind(
    name="animal",
    title="the {n}",
    mentions=("the animal {n}", "the {n}"),
    intro="{t} is a wild animal that",
    relations=(
        Relation(
            "island",
            "island",
            ("lives on the island of {v}", "is only found on {v}"),
            ("Where does {s} live?", "On which island does {s} live?"),
            ("the island where {s} lives",),
        ),
        Relation(
            "food",
            "food",
            ("eats {v} as its only food", "has {v} as its food"),
            ("What is the food of {s}?", "Which food does {s} eat?"),
        ),
        Relation(
            "fur",
            "colour",
            ("has a {v} coat", "has a thick coat of {v} hair"),
            ("What colour is {s}?", "What colour is the coat of {s}?"),
        ),
        Relation(
            "home",
            "home",
            ("sleeps in {v}", "makes its nest in {v}"),
            ("Where does {s} sleep?", "Where does {s} make its nest?"),
        ),
        Relation(
            "sound",
            "sound",
            ("sounds like a {v}", "has a call like a {v}"),
            ("Which sound is the call of {s} like?", "What is the call of {s} like?"),
        ),
    ),
    hidden=("food", "fur", "home", "sound"),
)
