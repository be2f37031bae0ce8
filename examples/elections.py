# %% [markdown]
# # Elections and polls: from ballots to intervals
#
# Two hundred voters were asked to rank six candidates. Most named only their first few. In which order do voters
# prefer the candidates, and which places are still open? Another two hundred voters would have answered differently.
#
# A Plackett-Luce law is fitted to the ballots, incomplete ones as they are. Fitting it again to ballots drawn from the
# given ones (a bootstrap) says how much of the ranking is chance.

# %%
import torch
from matplotlib import pyplot

from softrank_ext import consensus, pairwise, rank_interval
from softrank_ext.distributions import PlackettLuce, fit_plackett_luce
from softrank_ext.show import plot_pairwise, plot_places

# %% [markdown]
# ## The ballots
#
# Drawn here from a law that is forgotten afterwards; your own are a table of candidates by place. `known` says how
# many leading places a ballot names; what comes after them is ignored.

# %%
torch.manual_seed(1)
names = ["Ahern", "Byrne", "Costello", "Daly", "Egan", "Foley"]
truth = PlackettLuce(torch.tensor([1.2, 0.9, 0.8, 0.1, 0.0, -1.0]))
ballots = truth.sample((200,))
known = torch.randint(1, 6, (200,))
first = torch.bincount(ballots[:, 0], minlength=6)
print("first votes:", dict(zip(names, first.tolist(), strict=True)))

# %% [markdown]
# ## How the electorate ranks them
#
# The law of one voter's ballot, and sixty more electorates drawn from these ballots. Each gives an order of the
# candidates; together they are draws of the order of preference.

# %%
law = fit_plackett_luce(ballots, known=known)
orders = []
for _ in range(60):
    voters = torch.randint(len(ballots), (len(ballots),))
    orders.append(fit_plackett_luce(ballots[voters], known=known[voters]).mode)
electorates = torch.stack(orders)
best = consensus(electorates)
interval = rank_interval(electorates, 0.9)
for item in best.order.tolist():
    low, high = int(interval.low[item]) + 1, int(interval.high[item]) + 1
    print(f"{names[item]:<10} place {low}" + (f" to {high}" if high > low else ""))

# %% [markdown]
# ## A voter and the electorate
#
# That Ahern leads with the electorate does not mean that most voters put Ahern first. One voter's ballot, from the
# law:

# %%
voter = pairwise(law.sample((2000,)))
print(f"a voter puts {names[0]} before {names[5]} with probability {voter.value[0, 5]:.2f}")
print(f"a voter puts {names[0]} first with probability {float(law.scores.softmax(-1)[0]):.2f}")

# %% [markdown]
# ## The picture
#
# Left: the places of the candidates with the electorate, intervals of 90 %. Right: how often one voter puts the row's
# candidate before the column's.

# %%
figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
place = best.order.argsort() + 1
plot_places(names, place.tolist(), (interval.low + 1).tolist(), (interval.high + 1).tolist(), axes=left)
left.set_title("The electorate, intervals of 90 %")
plot_pairwise(voter, best.order, axes=right)
right.set_xticklabels([names[item] for item in best.order.tolist()], rotation=45)
right.set_yticklabels([names[item] for item in best.order.tolist()])
pyplot.show()
