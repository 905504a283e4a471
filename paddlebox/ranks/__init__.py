"""Several ranks that train one model: each owns a range of the hash order, with a store of its own.

world.py                who there is, waiting for each other, small things gathered
lane.py                 arrays between every two ranks
many_ranks.py           the exchanges of a set of tables
sharded.py              of one table, whose rows all ranks reach: keys once a pass
plans.py                what a pass and its steps exchange, as it is known ahead
step_planner.py         finds it for some batches at a time
stepping.py             each step: rows before it, gradients after it
exchange.py             rows from their owners, gradients to them
batch_rows.py           where the rows of a batch are: on the host, or on a GPU
prefetch.py             rows that travel a step earlier
two_level.py            the same exchange, with what a node's ranks ask and send merged first
quantize.py             rows and gradients in fewer bytes
rows_without_embedx.py  those of rows without an embedx
ids.py                  row ids in fewer bytes
nodes.py                which ranks share a node
routes.py               ways from one GPU of a machine to another
traffic.py              bytes that were sent
dense.py                gradients of dense parameters, summed
dense_modes.py          some of them only, or averages of the parameters now and then
reshard.py              the rows of some ranks as the stores of another number of them
"""

from paddlebox.ranks.many_ranks import ManyRanks
from paddlebox.ranks.world import World

__all__ = ["ManyRanks", "World"]
