"""The names in a text, and the order of texts by the names that they share."""

import pytest

from ratchet.retrieval.names import by_shared_names, names_in


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The harbour of Velm was built by Ada Torrin in 1204.", ["Velm", "Ada Torrin"]),
        ("In 1204, Ada Torrin's bridge and ada torrin's mill stood.", ["Ada Torrin"]),
        ("Velm, Orsk and Élan are towns; Velm is old.", ["Velm", "Orsk", "Élan"]),
        ("Who asked the WHO?", ["WHO"]),
        ("Rene\u0301 Lu\u00adpin saw E\u0301lan.", ["Ren\u00e9 Lupin", "\u00c9lan"]),
        ("Some towns trade. However, few do! Different towns: Many do.\nAvoiding it, Ada left Velm.", ["Ada", "Velm"]),
        ("Some Velmians read The Beacon, and I read it.", ["Velmians", "The Beacon"]),
        ('The Who are a band. "When it rains" is a song of theirs.', ["Who"]),
        ("New York is old. Will Orsk sings. Will it rain? Dogs bark.", ["New York", "Will Orsk", "Dogs"]),
        (
            "Dr. Ada Torrin met J.K. Orsk, J. K. Orsk and Bo O. Lind.",
            ["Dr. Ada Torrin", "J.K. Orsk", "J. K. Orsk", "Bo O. Lind"],
        ),
        ("He lives in the U.S. The mayor of Velm moved to St. Élan.", ["U.S.", "Velm", "St. Élan"]),
        ("'Felon' and C# are names, so is C++.", ["Felon", "C#", "C++"]),
        ("IT is short. It is not; Elizabeth I was.", ["IT", "Elizabeth I"]),
        ("apples are fruit", []),
        ("", []),
    ],
)
def test_names_are_runs_of_capitalised_words(text: str, names: list[str]) -> None:
    assert names_in(text) == names


def test_texts_that_share_a_name_come_one_after_the_other() -> None:
    texts = ["Velm is old.", "Rain falls.", "Orsk is new.", "Velm and Tarn trade.", "The Velm river.", "Tarn is small."]
    assert by_shared_names(texts) == [0, 3, 4, 5, 1, 2] and by_shared_names([]) == []
