"""A right answer in as few words as possible."""

TITLE = "Brevity"
NEEDS = ("answers",)


def score(question, trajectory):
    words = len(trajectory.answer.split())
    if not any(answer.lower() in trajectory.answer.lower() for answer in question.answers):
        return 0.0
    return 1.0 if words <= 3 else (None, "an answer of more than 3 words is not scored")
