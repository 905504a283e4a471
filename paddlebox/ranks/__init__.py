"""Several ranks that train one model. Each owns a key range, with a store of its own.

world.py                the coordinator of several ranks
job_store.py            small messages between all ranks
joining.py              checks that all ranks run one build and one config
host.py                 memory that the ranks of a host share
channel.py              exchanges of arrays between all ranks
messages.py             messages between hosts
link.py                 which ranks share a host, and what carries messages between hosts
connecting.py           connects ranks of different hosts over TCP
tcp.py                  the link over TCP
mpi_link.py             the link over MPI
varints.py              integers in few bytes
sharded.py              a table whose rows all ranks use: keys once per pass
plans.py                what a pass and its steps exchange, as planned
step_planner.py         plans the steps of some batches at a time
stepping.py             each step: rows before it, gradients after it
exchange.py             rows from their owners, gradients to them
batch_rows.py           the rows of a batch: on the host, or on a GPU
prefetch.py             rows that are fetched a step early
quantize.py             rows and gradients in fewer bytes
rows_without_embedx.py  messages for rows without an embedx
ids.py                  row ids in fewer bytes
nodes.py                which ranks share a node
traffic.py              counts of sent bytes
dense.py                sums of dense gradients
dense_modes.py          other ways to agree on dense parameters
telling.py              messages and errors of all ranks before tables are open
parity.py               parity of the files of each commit, over the ranks of a group
rebuild.py              rebuilds the store of a lost rank from this parity
reshard.py              moves rows to the stores of another number of ranks
transfer.py             sends ranks the parts of stores that they do not see
"""

from paddlebox.ranks.world import World

__all__ = ["World"]
