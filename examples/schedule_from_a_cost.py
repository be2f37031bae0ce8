# %% [markdown]
# # Schedule jobs by what they cost
#
# A workshop has twelve orders. Each is cut, then drilled, then painted, on one machine each, and all machines take the
# orders one after the other in the same sequence. Which sequence is done first? There are 12!, about 480 million, and
# no one knows the right one: there are no examples to learn from, only a cost that can be computed for every sequence.
#
# `schedule` takes the table and answers with the sequence, the times, and how far from the best possible it is at most.

# %%
import numpy as np
import torch
from matplotlib import pyplot

from softrank_ext import schedule
from softrank_ext.show import plot_schedule

# %% [markdown]
# ## The table
#
# A row per order, a column of hours per machine. A DataFrame or a CSV file would do as well.

# %%
random = np.random.default_rng(7)
jobs = {
    "job": [f"order {number}" for number in range(1, 13)],
    "cut": random.integers(1, 9, 12),
    "drill": random.integers(1, 9, 12),
    "paint": random.integers(1, 9, 12),
}

# %% [markdown]
# ## When is everything done?

# %%
plan = schedule(jobs, "makespan", seconds=0.5)
print(plan)
first = plan.found[0]
print(f"in the order of the table {first.cost:g} hours, in the order found {plan.cost:g}")

# %% [markdown]
# ## A rule
#
# Order 3 is a repair that customer 9 waits for: it must come before order 9. Rules are pairs of names.

# %%
ruled = schedule(jobs, "makespan", seconds=0.5, before=[("order 3", "order 9")])
place = np.argsort(ruled.order)
print(f"order 3 at place {place[2]}, order 9 at place {place[8]}, {ruled.cost:g} hours")

# %% [markdown]
# ## A cost of one's own
#
# Painting light after dark means half an hour of cleaning. The cost is a function of all jobs and many sequences at
# once: items (rows, jobs, columns), order (rows, jobs). Here it is the end of the last job plus the cleaning.

# %%
jobs["shade"] = random.integers(0, 3, 12)  # 0 is light, 2 is dark


def hours_with_cleaning(items, order):
    in_order = items[torch.arange(len(items))[:, None], order]  # (rows, place, column)
    ends = torch.zeros(len(items), 3, dtype=torch.float64)
    for place in range(order.shape[1]):
        now = torch.zeros(len(items), dtype=torch.float64)
        for machine in range(3):
            now = torch.maximum(now, ends[:, machine]) + in_order[:, place, machine]
            ends[:, machine] = now
    cleanings = (in_order[:, :, 3].diff(dim=1) < 0).sum(1)
    return ends[:, 2] + 0.5 * cleanings


own = schedule(jobs, hours_with_cleaning, seconds=1.0, machines=["cut", "drill", "paint"])
plain_cost = hours_with_cleaning(
    torch.tensor(np.stack([jobs[key] for key in ("cut", "drill", "paint", "shade")], 1), dtype=torch.float64)[None],
    torch.from_numpy(plan.order)[None],
)
print(f"with cleaning {own.cost:g} hours; the first plan would take {float(plain_cost):g}")

# %% [markdown]
# ## The plans
#
# Dark bars come first. Above: the shortest plan, below: the one that also saves cleaning.

# %%
figure, axes = pyplot.subplots(2, 1, figsize=(9, 5), layout="constrained", sharex=True)
plot_schedule(plan, axes[0])
plot_schedule(own, axes[1])
pyplot.show()
