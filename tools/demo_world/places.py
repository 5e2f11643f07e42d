"""What is said and asked about places: islands, towns, bridges and lighthouses."""

from __future__ import annotations

from tools.demo_world.kinds import Comparison, Kind, Relation

ISLAND = Kind(
    name="island",
    title="{n}",
    mentions=("the island of {n}", "{n}"),
    intro="{t} is an island that",
    relations=(
        Relation(
            "chief_town",
            "town",
            ("has {v} as its chief town", "is ruled from its chief town {v}"),
            ("What is the chief town of {s}?", "Which town is the chief town of {s}?"),
            ("the chief town of {s}",),
        ),
        Relation(
            "population",
            "number",
            ("has a population of {v} people", "is home to {v} people"),
            ("How many people live on {s}?", "What is the population of {s}?"),
            span=(300, 9800),
        ),
        Relation(
            "export",
            "goods",
            ("sells {v} to other islands", "sells much {v}"),
            ("Which goods does {s} sell?", "Which goods come from {s}?"),
        ),
        Relation(
            "sand",
            "colour",
            ("has {v} sand on its beaches", "has beaches of {v} sand"),
            ("What colour is the sand of {s}?", "Which colour is the sand on {s}?"),
        ),
        Relation(
            "tree",
            "tree",
            ("is covered with {v} trees", "has large forests of {v} trees"),
            ("Which trees grow on {s}?", "What kind of trees cover {s}?"),
        ),
    ),
    hidden=("export", "sand", "tree"),
    comparison=Comparison(
        "population",
        ("Which island has more people, {a} or {b}?", "Do more people live on {a} or on {b}?"),
        ("Which island has fewer people, {a} or {b}?",),
    ),
)

TOWN = Kind(
    name="town",
    title="{n}",
    mentions=("the town of {n}", "{n}"),
    intro="{t} is a town that",
    relations=(
        Relation(
            "island",
            "island",
            ("lies on the island of {v}", "is on the island of {v}"),
            ("On which island is {s}?", "On what island does one find {s}?"),
            ("the island where {s} lies",),
        ),
        Relation(
            "founded",
            "number",
            ("was founded in {v}", "was founded in the year {v}"),
            ("When was {s} founded?", "In which year was {s} founded?"),
            span=(1100, 1340),
        ),
        Relation(
            "craft",
            "craft",
            ("is known for its {v}", "is famous for {v}"),
            ("For which craft is {s} known?", "Which craft is {s} famous for?"),
        ),
        Relation(
            "landmark",
            "landmark",
            ("has an old {v} as its landmark", "is proud of its landmark, the {v}"),
            ("What is the landmark of {s}?", "Which landmark does {s} have?"),
        ),
        Relation(
            "market",
            "weekday",
            ("has its market on {v}", "holds a market every {v}"),
            ("On which day is the market in {s}?", "Which day is market day in {s}?"),
        ),
    ),
    hidden=("craft", "landmark", "market"),
    comparison=Comparison(
        "founded",
        ("Which town was founded later, {a} or {b}?",),
        ("Which town is older, {a} or {b}?", "Which town was founded first, {a} or {b}?"),
    ),
)

BRIDGE = Kind(
    name="bridge",
    title="the {n}",
    mentions=("the bridge {n}", "the {n}"),
    intro="{t} is a bridge that",
    relations=(
        Relation(
            "architect",
            "person",
            ("was designed by {v}", "was planned by its designer {v}"),
            ("Who designed {s}?", "Who was the designer of {s}?"),
            ("the designer of {s}", "the person who designed {s}"),
        ),
        Relation(
            "length",
            "number",
            ("is {v} paces long", "has a length of {v} paces"),
            ("How long is {s}?", "How many paces long is {s}?"),
            span=(80, 990),
        ),
        Relation(
            "material",
            "material",
            ("is made of {v}", "was built of {v}"),
            ("Of which material is {s} made?", "Which material is {s} made of?"),
        ),
        Relation(
            "toll",
            "toll",
            ("has a toll of one {v}", "asks for a toll of one {v}"),
            ("What is the toll of {s}?", "Which toll does {s} ask for?"),
        ),
        Relation(
            "statue",
            "statue",
            ("is decorated with statues of {v}", "has statues of {v}"),
            ("Which statues does {s} have?", "Statues of which animals are on {s}?"),
        ),
    ),
    hidden=("material", "toll", "statue"),
    comparison=Comparison(
        "length", ("Which bridge is longer, {a} or {b}?",), ("Which bridge is shorter, {a} or {b}?",)
    ),
)

LIGHTHOUSE = Kind(
    name="lighthouse",
    title="{n}",
    mentions=("the lighthouse {n}", "{n}"),
    intro="{t} is a lighthouse that",
    relations=(
        Relation(
            "island",
            "island",
            ("stands on the island of {v}", "is on the island of {v}"),
            ("On which island is {s}?", "On which island does {s} stand?"),
            ("the island where {s} stands",),
        ),
        Relation(
            "height",
            "number",
            ("is {v} feet tall", "has a height of {v} feet"),
            ("How tall is {s}?", "How many feet tall is {s}?"),
            span=(40, 290),
        ),
        Relation(
            "light",
            "colour",
            ("has a {v} light", "shines with a {v} light"),
            ("What colour is the light of {s}?", "Which colour is the light of {s}?"),
        ),
        Relation(
            "fuel",
            "fuel",
            ("burns {v} as its fuel", "uses {v} as its fuel"),
            ("What is the fuel of {s}?", "Which fuel does {s} burn?"),
        ),
        Relation(
            "signal",
            "signal",
            ("has a {v} as its fog signal", "gives its signal in fog with a {v}"),
            ("Which signal does {s} give in fog?", "What is the fog signal of {s}?"),
        ),
    ),
    hidden=("light", "fuel", "signal"),
    comparison=Comparison(
        "height", ("Which lighthouse is taller, {a} or {b}?",), ("Which lighthouse is lower, {a} or {b}?",)
    ),
)
