# %% [markdown]
# # Solve a jigsaw
#
# A photo was cut into sixteen square patches, and the patches were shuffled. Put them back. There are 16!, about 2 *
# 10^13, ways to lay them out, and nothing tells where a patch belongs but the patches themselves: edges that
# continue, sky above ground, an eye that needs a head around it.
#
# Some photos leave room for doubt. Two patches of clear sky can be swapped without anyone noticing. So the question
# is not only "which order?" but also "how sure is it, and of which patches?". The bundled model answers both: it
# draws orders with their probabilities.

# %%
import torch
from matplotlib import pyplot

from softrank_ext import from_pretrained, sample, top_k
from softrank_ext.show import plot_jigsaw
from softrank_ext.show.demo import items_of_file
from softrank_ext.tasks.jigsaw import Jigsaw

# %% [markdown]
# ## Photos and patches
#
# The package brings a few test photos of CIFAR-10, 32 x 32 pixels each, on which no model was trained. `Jigsaw(4)`
# cuts them into patches of 8 x 8 and arranges these in a random order. For photos of your own, cut and shuffle in
# any way you like: the model reads patches (B, 16, 3, 8, 8) uint8 and returns, place by place from the top left,
# which patch goes there.

# %%
photos = items_of_file()["images"]
generator = torch.Generator().manual_seed(0)
shuffles = torch.stack([torch.randperm(16, generator=generator) for _ in photos])
batch = Jigsaw(4).batch_of(photos, shuffles)
patches, right = batch.items, batch.order  # right[row, place] = patch
print(patches.shape, patches.dtype)

# %% [markdown]
# ## One answer for each photo
#
# Greedy decoding takes the most likely patch for each place. A jigsaw counts as solved if all sixteen patches are
# right.

# %%
model = from_pretrained("jigsaw-4x4")
greedy = sample(model, patches, decode="greedy", seed=0)
solved = (greedy.order[:, 0] == right).all(1)
print(f"{int(solved.sum())} of {len(photos)} photos solved")

# %% [markdown]
# ## Many answers, and how sure the model is
#
# Thirty-two draws for each photo. Where they agree, the model is sure. A share of draws is an estimate of a
# probability: the top-left patch, say, is the one that `top_k` with k = 1 finds most often at place 0.

# %%
draws = sample(model, patches, num_samples=32, seed=1)
agreement = (draws.order == greedy.order).all(2).float().mean(1)  # share of draws that are the greedy order
print(f"agreement where the answer is right: {float(agreement[solved].mean()):.2f}")
print(f"agreement where it is wrong:         {float(agreement[~solved].mean()):.2f}")

first = top_k(draws, 1)
print(f"P(the chosen patch is top left), photo 0: {float(first.value[0].max()):.2f}")

# %% [markdown]
# The agreement can be used: answer only where enough of the draws agree, and leave the others to a person. The more
# agreement is asked for, the fewer photos are answered, and the larger is the share of right answers.

# %%
for least in (0.0, 0.5, 0.75, 0.95):
    is_sure = agreement >= least
    share = float(solved[is_sure].float().mean())
    print(f"agreement of at least {least:4.0%}: {int(is_sure.sum()):2} photos answered, {share:4.0%} of them right")

# %% [markdown]
# ## The doubtful patches
#
# For one photo that was not solved: how often each place holds the patch that it holds in the greedy order. Frames
# mark the places where the draws disagree, with that share.

# %%
number = int((~solved).nonzero()[0])
sure = (draws.order[number] == greedy.order[number, 0]).float().mean(0)  # (16,), a share for each place

figure, panels = pyplot.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
layouts = {"as given": torch.arange(16), "the model's answer": greedy.order[number, 0], "the photo": right[number]}
for axes, (title, order) in zip(panels, layouts.items(), strict=True):
    grid = patches[number][order].reshape(4, 4, 3, 8, 8).permute(0, 3, 1, 4, 2).reshape(32, 32, 3)
    axes.imshow(grid.numpy())
    axes.set(title=title, xticks=[], yticks=[])
for place, share in enumerate(sure.tolist()):
    row, column = divmod(place, 4)
    if share < 0.9:
        frame = pyplot.Rectangle((8 * column, 8 * row), 7, 7, fill=False, linewidth=2.5, edgecolor="black")
        panels[1].add_patch(frame)
        panels[1].text(8 * column + 3.5, 8 * row + 3.5, f"{share:.0%}", color="white", ha="center", va="center")
pyplot.show()

# %% [markdown]
# ## From noise to the photo
#
# With `record=True` a sample keeps its way. Above, the patches in the order of their soft ranks, from noise at time
# 1 to the answer at time 0; below, what the network predicts at each step.

# %%
number = int(solved.nonzero()[0])
recorded = sample(model, patches[number], decode="greedy", seed=0, record=True)
figure = plot_jigsaw(recorded[0].trajectory, patches[number], right[number], "A jigsaw of 16 patches")
figure.savefig("solve_a_jigsaw.png")
figure
