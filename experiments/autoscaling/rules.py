"""The rules of other systems that set the number of workers, as in planner/src/scaling/policy.rs.

>>> cachew = Cachew(1)
>>> [cachew.on_batch_time(s) for s in (1.0, 0.5, 0.49)]
[2, 3, 2]
>>> hpa(4, 0.85), hpa(4, 1.0), hpa(4, 0.3)
(4, 5, 2)
>>> epoch_s = {1: 1730, 2: 870, 3: 645, 4: 550, 5: 510, 6: 505, 7: 500, 8: 495}    # Cachew, Figure 6a
>>> cachew_steps(epoch_s.get, 8), hpa_steps(lambda n: 0.55 * 1730 / epoch_s[n] / n, 8)
([1, 2, 3, 4, 5, 6, 5], [1])
"""

import math

# Utilisation at which Kubernetes' horizontal pod autoscaler aims, and the tolerance within which it changes nothing.
HPA_TARGET, HPA_TOLERANCE = 0.8, 0.1


def hpa(workers, utilisation):
    """The number that the autoscaler wants for a utilisation of the workers' CPU, 0 to 1."""
    ratio = utilisation / HPA_TARGET
    if abs(ratio - 1) <= HPA_TOLERANCE + 1e-9:
        return workers
    return max(1, math.ceil(workers * ratio * (1 - 1e-9)))


def hpa_steps(utilisation, most):
    """The numbers from 1 to `most` that the autoscaler goes through. `utilisation(workers)` is measured."""
    steps = [1]
    while (workers := min(most, hpa(steps[-1], utilisation(steps[-1])))) not in steps:
        steps.append(workers)
    return steps


def cachew_steps(batch_s, most):
    """The numbers from 1 to `most` that Cachew's rule goes through until it settles. `batch_s(workers)` is measured."""
    rule, steps = Cachew(1), [1]
    while rule.phase != "stable" and len(steps) < 4 * most:
        steps.append(min(most, rule.on_batch_time(batch_s(steps[-1]))))
    return [n for n, before in zip(steps, [None, *steps]) if n != before]


class Cachew:
    """Cachew's rule: one worker at a time, by the batch times of the consumer."""

    MIN_GAIN, MAX_LOSS, OUTLIER, RECHECK, MOST = 0.07, 0.03, 1.2, 20, 100

    def __init__(self, workers, batch_s=math.nan):
        """With the batch time of these workers the rule has settled on them. Without it, it first tries one more."""
        phase = "first" if math.isnan(batch_s) else "stable"
        self.workers, self.phase, self.gained, self.stable, self.batch_s = workers, phase, False, 0, batch_s

    def on_batch_time(self, batch_s):
        """The number of workers after a report of the mean time of a batch."""
        change = (batch_s - self.batch_s) / self.batch_s
        if abs(change) > self.OUTLIER:
            return self.workers
        if self.phase == "first":
            self._add(batch_s, gained=False)
        elif self.phase == "up" and change < -self.MIN_GAIN:
            self._add(batch_s, gained=True)
        elif self.phase == "up" and self.gained:
            self._settle(self.workers - 1)
        elif self.phase == "up" and self.workers > 2:
            self.workers, self.phase = self.workers - 2, "down"
        elif self.phase == "up":
            self._settle(1)
        elif self.phase == "down" and change < self.MAX_LOSS and self.workers > 1:
            self.batch_s, self.workers = batch_s, self.workers - 1
        elif self.phase == "down":
            self._settle(self.workers + (change >= self.MAX_LOSS))
        else:
            self.stable += 1
            if self.stable >= self.RECHECK:
                self._add(batch_s, gained=False)
        return self.workers

    def _add(self, batch_s, gained):
        self.batch_s = batch_s
        if self.workers >= self.MOST:
            return self._settle(self.MOST)
        self.phase, self.gained = "up", gained
        self.workers += 1

    def _settle(self, workers):
        self.workers, self.phase, self.stable = max(1, workers), "stable", 0
