from ratchet.training.objectives.objective import Lesson, RowObjective


class RewardWeighted(RowObjective):
    needs_both_sides = False  # it learns from good trajectories alone, too
    needs_reference = False  # its loss reads no log-probabilities from before training

    def lessons(self, alternatives):
        question, weight = alternatives.question, alternatives.weight
        return {
            key: Lesson(question, reward, weight * reward, example="", chosen=True)
            for key, reward in alternatives.rewards.items()
            if reward > 0
        }

    def loss(self, rows):
        return (-rows.weights[:, None] * rows.now).where(rows.learnt, 0).sum()


OBJECTIVE = RewardWeighted
