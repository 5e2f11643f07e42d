"""What is said and asked about people and what they build, found, cook and meet: also ferries, guilds, animals."""

from __future__ import annotations

from demo.kinds import Comparison, Kind, Relation

PERSON = Kind(
    name="person",
    title="{n}",
    mentions=("{n}",),
    intro="{t} is {job} who",
    relations=(
        Relation(
            "birthplace",
            "town",
            ("was born in the town of {v}", "was born and raised in {v}"),
            ("In which town was {s} born?", "Where was {s} born?"),
            ("the town where {s} was born",),
        ),
        Relation(
            "born",
            "number",
            ("was born in the year {v}", "came into the world in the year {v}"),
            ("In which year was {s} born?", "When was {s} born?"),
            span=(1385, 1429),
        ),
        Relation(
            "invention",
            "invention",
            ("invented the {v}", "is the inventor of the {v}"),
            ("What did {s} invent?", "Which invention was made by {s}?"),
        ),
        Relation(
            "instrument",
            "instrument",
            ("plays the {v} in the evenings", "is a good player of the {v}"),
            ("Which instrument does {s} play?", "What musical instrument is played by {s}?"),
        ),
        Relation(
            "pet",
            "pet",
            ("keeps a tame {v} as a pet", "shares a house with a pet {v}"),
            ("What pet does {s} keep?", "Which animal is the pet of {s}?"),
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
            ("Who built {s}?", "Who was the builder of {s}?", "What is the name of the person who built {s}?"),
            ("the builder of {s}", "the person who built {s}"),
        ),
        Relation(
            "launched",
            "number",
            ("was launched in the year {v}", "first sailed in the year {v}"),
            ("In which year was {s} launched?", "When was {s} launched?"),
            span=(1450, 1484),
        ),
        Relation(
            "cargo",
            "goods",
            ("carries {v} from port to port", "takes a cargo of {v} on every trip"),
            ("What cargo does {s} carry?", "What does {s} carry?"),
        ),
        Relation(
            "figurehead",
            "figurehead",
            ("has a carved {v} as its figurehead", "wears a wooden {v} as a figurehead"),
            ("Which figurehead does {s} have?", "What is the figurehead of {s}?"),
        ),
        Relation(
            "sails",
            "colour",
            ("sails under {v} sails", "has {v} sails"),
            ("What colour are the sails of {s}?", "Which colour of sails does {s} have?"),
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
            ("was founded by {v}", "was started by its founder {v}"),
            ("Who founded {s}?", "Who was the founder of {s}?"),
            ("the founder of {s}", "the person who founded {s}"),
        ),
        Relation(
            "founded",
            "number",
            ("held its first meeting in the year {v}", "has existed since the year {v}"),
            ("In which year did {s} begin?", "Since which year has {s} existed?"),
            span=(1450, 1484),
        ),
        Relation(
            "trade",
            "trade",
            ("has only {v} as members", "takes {v} as its members"),
            ("Which workers belong to {s}?", "Who are the members of {s}?"),
        ),
        Relation(
            "emblem",
            "emblem",
            ("shows a large {v} on its flag", "uses a {v} as its emblem"),
            ("What is the emblem of {s}?", "Which emblem is on the flag of {s}?"),
        ),
        Relation(
            "cloak",
            "colour",
            ("gives its members {v} cloaks", "asks its members to wear {v} cloaks"),
            ("What colour are the cloaks of {s}?", "Which colour do members of {s} wear?"),
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
            ("takes place in the town of {v}", "is held in the streets of {v}"),
            ("In which town is {s} held?", "Where does {s} take place?"),
            ("the town where {s} is held",),
        ),
        Relation(
            "dish",
            "dish",
            ("offers {v} as its festive dish", "is the time to eat a dish called {v}"),
            ("Which dish is eaten at {s}?", "What dish is served at {s}?"),
            ("the dish eaten at {s}",),
        ),
        Relation(
            "month",
            "month",
            ("is celebrated every {v}", "comes each year in {v}"),
            ("In which month is {s} celebrated?", "Which month is the month of {s}?"),
        ),
        Relation(
            "contest",
            "contest",
            ("is known for its contest in {v}", "ends with a great contest in {v}"),
            ("Which contest is held at {s}?", "In what do people compete at {s}?"),
        ),
        Relation(
            "prize",
            "prize",
            ("gives its winner a {v} as a prize", "has a {v} as its first prize"),
            ("What is the prize at {s}?", "What does the winner get at {s}?"),
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
            ("is made mainly of {v}", "has {v} as its main ingredient"),
            ("What is the main ingredient of {s}?", "What is {s} mainly made of?"),
        ),
        Relation(
            "spice",
            "spice",
            ("is seasoned with {v}", "gets its taste from {v}"),
            ("Which spice is used in {s}?", "With what is {s} seasoned?"),
        ),
        Relation(
            "drink",
            "drink",
            ("is always eaten with a glass of {v}", "goes best with {v} to drink"),
            ("What do people drink with {s}?", "Which drink goes with {s}?"),
        ),
        Relation(
            "vessel",
            "vessel",
            ("comes to the table in a {v}", "is served in a {v}"),
            ("In what is {s} served?", "What is {s} served in?"),
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
            ("lives only on the island of {v}", "is found nowhere but on {v}"),
            ("On which island does {s} live?", "Where does {s} live?"),
            ("the island where {s} lives",),
        ),
        Relation(
            "food",
            "food",
            ("feeds on {v}", "eats nothing but {v}"),
            ("What does {s} eat?", "What is the food of {s}?"),
        ),
        Relation(
            "fur",
            "colour",
            ("has a thick {v} coat", "is easy to know by its {v} coat"),
            ("What colour is the coat of {s}?", "Which colour does {s} have?"),
        ),
        Relation(
            "home",
            "home",
            ("makes its nest in {v}", "sleeps through the day in {v}"),
            ("Where does {s} sleep or nest?", "In what kind of place does {s} rest?"),
        ),
        Relation(
            "sound",
            "sound",
            ("makes a call like a {v}", "sounds just like a {v}"),
            ("What does {s} sound like?", "What is the call of {s} like?"),
        ),
    ),
    hidden=("food", "fur", "home", "sound"),
)
