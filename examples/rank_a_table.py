# %% [markdown]
# # Rank a table
#
# A search page shows hotels for a query. Some queries have been judged: each hotel has a grade from 0 to 3. Which
# hotels should come first for new queries, and how sure is that?
#
# `Ranker` learns from the judged table. Prices are in any currency and sometimes missing, the city is a text, lists are
# of any length, and many hotels of a list have the same grade. The answer is a place for every row, with an interval
# and the probabilities to be first and among the first three.

# %%
import numpy as np
from matplotlib import pyplot

from softrank_ext import Quota, Ranker
from softrank_ext.show import plot_places

# %% [markdown]
# ## The table
#
# Drawn here; a DataFrame of pandas or polars, or the path of a CSV file, would do as well.

# %%
random = np.random.default_rng(0)


def judged_hotels(queries, first=0):
    query = np.repeat([f"query {number}" for number in range(first, first + queries)], random.integers(4, 13, queries))
    stars = random.integers(1, 6, len(query))
    city = random.choice(["Bonn", "Rome", "Vienna"], len(query))
    price = np.exp(3.5 + 0.3 * stars + random.normal(0, 0.5, len(query)))
    worth = 1.2 * stars - 2.5 * np.log(price) + 1.5 * (city == "Rome") + random.normal(0, 0.7, len(query))
    price[random.random(len(query)) < 0.05] = np.nan
    grade = np.searchsorted(np.quantile(worth, (0.4, 0.7, 0.9)), worth)
    chain = random.choice(["Sol", "Luna", "Mar", "Alba", "Vento"], len(query))
    return {"query": query, "price": price.round(), "stars": stars, "city": city, "chain": chain, "grade": grade}


judged = judged_hotels(80)
for name, column in judged.items():
    print(f"{name:<6}", *column[:4], "...")

# %% [markdown]
# ## Learn
#
# Small networks for a quick example; the defaults are larger and take minutes.

# %%
ranker = Ranker(["price", "stars", "city"], group="query", label="grade", members=2, width=32, epochs=10)
ranker.fit(judged)
print(ranker)

# %% [markdown]
# ## How good is it?
#
# On training groups, each asked of a network that did not see it. On the dashed line a probability means what it says.

# %%
report = ranker.report()
print(report)

# %% [markdown]
# ## New queries
#
# The same rows with six more columns. `low` and `high` hold the place with a probability of 80 %.

# %%
new = judged_hotels(10, first=100)
ranked = ranker.predict(new)
for row in np.flatnonzero(ranked["query"] == "query 100"):
    print(", ".join(f"{name} {ranked[name][row]}" for name in ("stars", "price", "city", "place", "low", "high")))

# %% [markdown]
# ## With a rule
#
# No two hotels of a chain among the first two.

# %%
ruled = ranker.predict(new, rules=Quota("chain", at_most=1, top=2))
changed = int((ruled["place"] != ranked["place"]).sum())
print(f"the rule moves {changed} of {len(ruled['place'])} rows")

# %% [markdown]
# ## The picture
#
# One query: the ranking (points) and where each hotel stands with a probability of 80 % (bars).

# %%
own = np.flatnonzero(ranked["query"] == "query 100")
prices = ["price unknown" if np.isnan(price) else f"{price:.0f}" for price in ranked["price"][own]]
names = [
    f"{ranked['city'][row]}, {'★' * ranked['stars'][row]}, {price}" for row, price in zip(own, prices, strict=True)
]
figure, axes = pyplot.subplots(figsize=(7, 0.4 * len(own) + 1), layout="constrained")
plot_places(names, *(ranked[name][own] for name in ("place", "low", "high")), axes=axes)
axes.set_title("Hotels of one query, with intervals of 80 %")
pyplot.show()
