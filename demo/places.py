"""What is said and asked about places: islands, towns, bridges and lighthouses."""

from __future__ import annotations

from demo.kinds import Comparison, Kind, Relation

ISLAND = Kind(
    name="island",
    title="{n}",
    mentions=("the island of {n}", "{n}"),
    intro="{t} is an island that",
    relations=(
        Relation(
            "chief_town",
            "town",
            ("has {v} as its chief town", "is governed from its chief town of {v}"),
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
            ("sells {v} to the other islands", "exports {v} by the shipload"),
            ("What does {s} sell to other islands?", "What is exported from {s}?"),
        ),
        Relation(
            "sand",
            "colour",
            ("has beaches of {v} sand", "is known for the {v} sand of its beaches"),
            ("What colour is the sand on {s}?", "Which colour is the beach sand of {s}?"),
        ),
        Relation(
            "tree",
            "tree",
            ("has hills covered with {v} trees", "is covered by a forest of {v} trees"),
            ("Which kind of tree covers {s}?", "What trees grow on {s}?"),
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
            ("lies on the island of {v}", "stands on the coast of the island of {v}"),
            ("On which island is {s}?", "On what island can one find {s}?"),
            ("the island where {s} lies",),
        ),
        Relation(
            "founded",
            "number",
            ("was founded in the year {v}", "was first settled in the year {v}"),
            ("In which year was {s} founded?", "When was {s} founded?"),
            span=(1100, 1340),
        ),
        Relation(
            "craft",
            "craft",
            ("is known for its {v}", "lives mostly from {v}"),
            ("Which craft is {s} known for?", "What craft do people practise in {s}?"),
        ),
        Relation(
            "landmark",
            "landmark",
            ("has a famous old {v} in its centre", "is proud of the {v} on its main square"),
            ("What is the famous landmark of {s}?", "Which landmark stands in the centre of {s}?"),
        ),
        Relation(
            "market",
            "weekday",
            ("holds its market every {v}", "opens its market each {v}"),
            ("On which day is the market held in {s}?", "What day is market day in {s}?"),
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
            ("is {v} paces long", "takes {v} paces to cross"),
            ("How many paces long is {s}?", "How long is {s} in paces?"),
            span=(80, 990),
        ),
        Relation(
            "material",
            "material",
            ("is made of {v}", "stands on pillars of {v}"),
            ("What is {s} made of?", "Which material was used for {s}?"),
        ),
        Relation(
            "toll",
            "toll",
            ("asks every traveller for a toll of one {v}", "costs one {v} as its toll"),
            ("What is the toll of {s}?", "What toll do travellers pay at {s}?"),
        ),
        Relation(
            "statue",
            "statue",
            ("is decorated with statues of {v}", "has a row of stone {v} along its rail"),
            ("Which animals decorate {s}?", "What animals are carved on {s}?"),
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
            ("stands on a cliff on the island of {v}", "guards the coast of the island of {v}"),
            ("On which island does {s} stand?", "On what island can one find {s}?"),
            ("the island where {s} stands",),
        ),
        Relation(
            "height",
            "number",
            ("is {v} feet tall", "rises to a height of {v} feet"),
            ("How many feet tall is {s}?", "How tall is {s} in feet?"),
            span=(40, 290),
        ),
        Relation(
            "light",
            "colour",
            ("shows a {v} light at night", "shines with a {v} light"),
            ("What colour is the light of {s}?", "Which colour of light does {s} show?"),
        ),
        Relation(
            "fuel",
            "fuel",
            ("burns {v} in its lamp", "keeps its lamp going with {v}"),
            ("What is burned in the lamp of {s}?", "Which fuel does {s} use?"),
        ),
        Relation(
            "signal",
            "signal",
            ("warns ships in fog with a loud {v}", "uses a {v} when there is fog"),
            ("What does {s} use in fog?", "With what does {s} warn ships in fog?"),
        ),
    ),
    hidden=("light", "fuel", "signal"),
    comparison=Comparison(
        "height", ("Which lighthouse is taller, {a} or {b}?",), ("Which lighthouse is lower, {a} or {b}?",)
    ),
)
