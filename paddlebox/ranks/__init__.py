"""Several ranks that train one model. Each owns a key range, with a store of its own.

world.py                the group of several ranks
joining.py              checks when ranks join, and memory that the ranks of a host share
job_store.py            small messages between all ranks
small_messages.py       messages and errors of all ranks before tables are open
channel.py              exchanges of arrays between all ranks
messages.py             the bytes of messages
link.py                 which ranks share a host, and what carries messages between hosts
connecting.py, tcp.py   the link over TCP
mpi_link.py             the link over MPI
shared_tables.py        tables whose rows all ranks use: keys once per pass
plans.py                what a pass and its steps exchange, as planned
step_planner.py         plans the steps of some batches at a time
stepping.py             each step: rows before it, gradients after it
exchange.py             rows from their owners, gradients to them
row_messages.py         rows and gradients in fewer bytes
traffic.py              counts of sent bytes
dense.py                how ranks agree on dense parameters
recovery.py             the position at which ranks continue, and partial recovery
parity.py               parity of the files of each commit, over the ranks of a group
rebuild.py              rebuilds the store of a lost rank from this parity
reshard.py              moves rows to the stores of another number of ranks
sightings.py            the stores of former ranks, and which are the newest
adopt_stores.py         rebuilds, restores or reshards stores before a job starts
"""

from paddlebox.ranks.world import World, check_config

__all__ = ["World", "check_config"]
