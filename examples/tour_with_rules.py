# %% [markdown]
# # A delivery tour with rules
#
# A courier starts at a depot in Amsterdam, visits 22 towns and comes back. Three parcels are picked up in one town and
# delivered in another, so one town must come before the other, and the towns around Rotterdam share a driver who must
# be met once: they are visited one right after another. Which tour is short and keeps these rules?
#
# `plan_tour` takes latitudes and longitudes as they are, and answers with the tour, its length in km, and how much
# shorter any tour could be.

# %%
from matplotlib import pyplot

from softrank_ext import plan_tour

# %% [markdown]
# ## The places
#
# A table with a column of names and two of degrees. A DataFrame or a CSV file would do as well.

# %%
towns = {
    "depot": (52.3731, 4.8922), "Haarlem": (52.3874, 4.6462), "Leiden": (52.1601, 4.4970),
    "The Hague": (52.0705, 4.3007), "Delft": (52.0116, 4.3571), "Rotterdam": (51.9244, 4.4777),
    "Gouda": (52.0115, 4.7104), "Utrecht": (52.0907, 5.1214), "Amersfoort": (52.1561, 5.3878),
    "Hilversum": (52.2292, 5.1669), "Almere": (52.3508, 5.2647), "Zaandam": (52.4420, 4.8292),
    "Alkmaar": (52.6324, 4.7534), "Hoorn": (52.6424, 5.0597), "Dordrecht": (51.8133, 4.6901),
    "Breda": (51.5719, 4.7683), "Tilburg": (51.5606, 5.0919), "Den Bosch": (51.6978, 5.3037),
    "Eindhoven": (51.4416, 5.4697), "Nijmegen": (51.8126, 5.8372), "Arnhem": (51.9851, 5.8987),
    "Apeldoorn": (52.2112, 5.9699), "Zwolle": (52.5168, 6.0830),
}  # fmt: skip
places = {"name": list(towns), "lat": [lat for lat, _ in towns.values()], "lon": [lon for _, lon in towns.values()]}

# %% [markdown]
# ## Without rules

# %%
free = plan_tour(places, metric="latlon", start="depot", seconds=1)
print(free)
print(free.certainty)
print(free.answered_by)

# %% [markdown]
# ## With rules
#
# The bound holds for all tours, so with rules it also counts what the rules cost.

# %%
parcels = [("Zwolle", "Breda"), ("Leiden", "Almere"), ("Delft", "Hoorn")]
ruled = plan_tour(
    places, metric="latlon", start="depot", pairs=parcels, groups=[("Rotterdam", "Delft", "Dordrecht")], seconds=1
)
print(ruled)
for pickup, delivery in parcels:
    print(f"{pickup} at stop {ruled.stops.index(pickup)}, {delivery} at stop {ruled.stops.index(delivery)}")
print(f"the rules cost {ruled.length - free.length:.0f} km")

# %% [markdown]
# ## Both on a map
#
# Left the tour without rules, right the one that keeps them. The square is the depot.

# %%
figure, axes = pyplot.subplots(1, 2, figsize=(11, 6), layout="constrained")
free.plot(axes[0])
ruled.plot(axes[1])
pyplot.show()
