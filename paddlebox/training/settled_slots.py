"""Chooses the constants of zscore, minmax and quantile, once, when a run begins. Each commit stores
the slots with them, so that a resumed run, other ranks and servers compute the same bits."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paddlebox.config import Slots
from paddlebox.config.check import validate
from paddlebox.data.normalizers import constants_of, open_slots, with_constants
from paddlebox.errors import ConfigError
from paddlebox.store.group import Group
from paddlebox.store.run_config import stored_slots
from paddlebox.training.plan import PlannedPass
from paddlebox.training.resume import ResumeRequest

log = logging.getLogger("paddlebox")


def settled_slots(
    request: ResumeRequest,
    plan: Sequence[PlannedPass],
    world: Group,
    source: Slots | None = None,
) -> Slots:
    """The slots with constants: those of the commit that the run continues, or of the run that it
    starts with, or else of the first rows. Every rank calls it.

    Args:
        plan: the passes of the config; empty for a stream of hours.
        source: the slots of the run with whose rows this run starts.

    Raises: ConfigError if the first rows cannot be read in advance, or have no values; DataError,
    which names a file that cannot be read; StoreError if the version `back_to` does not exist.
    """
    slots, config = request.slots, request.config
    if not open_slots(slots):
        return slots
    found = world.gather("stored slots", stored_slots(request.run_dir, request.back_to))
    stored = next((one for one in found if one), None)
    if stored is not None:
        source = validate(Slots, stored, f"{request.run_dir}: slots")
    slots = _like(slots, source) if source is not None else slots
    wanted = open_slots(slots)
    if not wanted:
        return slots
    if not plan or config.data.pipe_command or config.data.parser:
        raise ConfigError(
            f"slot {wanted[0].name!r}: expr {wanted[0].expr}: its constants come from the first "
            "rows, which cannot be read in advance: give the slot constants: [...] in "
            f"{config.data.slots}"
        )
    own = constants_of(config, slots, plan[0].files) if world.rank == 0 else []
    constants = [tuple(one) for one in world.first("constants of slots", own)]
    if world.rank == 0:
        names = ", ".join(slot.name for slot in wanted)
        log.info("chosen from the first rows: the constants of slots %s", names)
    return with_constants(slots, constants)


def _like(slots: Slots, source: Slots) -> Slots:
    """The slots with the constants of those with the same name and expression."""
    theirs = {(slot.name, slot.expr): slot.constants for slot in source.slots}
    taken = {
        slot.name: slot.having({"constants": theirs.get((slot.name, slot.expr))})
        for slot in open_slots(slots)
    }
    return slots.having({"slots": tuple(taken.get(slot.name, slot) for slot in slots.slots)})
