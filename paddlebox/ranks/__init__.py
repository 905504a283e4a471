"""Several ranks that train one model: each owns a range of the hash order, with a store of its own.

world.py    who there is, waiting for each other, small things gathered
lane.py     arrays between every two ranks
sharded.py  a table whose rows all ranks reach: keys once a pass, rows and gradients each step
dense.py    gradients of dense parameters, summed
moving.py   the rows of some ranks as the stores of another number of them
"""

from paddlebox.ranks.sharded import ShardedTable
from paddlebox.ranks.world import World

__all__ = ["ShardedTable", "World"]
