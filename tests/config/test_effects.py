"""Every option of a table, of ranks, saves, publishing and the feeder has a test of its effect."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from paddlebox.config import Config
from tests.conftest import ROOT
from tests.support import processes

_TABLE = "store/test_table_config.py"
_LIFE = "store/test_life_days.py"
_SAVE = "saves/test_save_options.py"
_PUBLISH = "serving/test_publish_options.py"
_FEEDER = "data/test_feeder_options.py"
_RANKS = "ranks/test_rank_options.py"

#: By option: a test that fails if the option is read and then ignored.
EFFECTS = {
    **{
        f"table.{part}.{option}": f"{_TABLE}::test_a_weight_moves_by_its_rule[{part}-{option}]"
        for part in ("embed", "embedx")
        for option in (*("rule", "learning_rate", "initial_g2sum", "l1", "l2"),)
    },
    **{
        f"table.{part}.initial_range": f"{_TABLE}::test_new_weights_are_uniform_in_their_range"
        f"[{part}]"
        for part in ("embed", "embedx")
    },
    "table.name": f"{_TABLE}::test_operators_find_the_table_by_its_name",
    "table.embedx_dim": f"{_TABLE}::test_a_row_has_embedx_dim_columns",
    "table.embedx_threshold": f"{_TABLE}"
    "::test_embedx_comes_with_the_push_that_reaches_the_threshold",
    "table.row_precision": f"{_TABLE}::test_embedx_is_rounded_when_the_pass_ends[float16-10]",
    "table.show_scale": f"{_TABLE}::test_without_show_scale_a_gradient_is_not_divided_by_shows",
    "table.weight_decay": f"{_TABLE}"
    "::test_each_step_halves_the_weights_of_all_rows_also_of_those_that_are_absent",
    "table.admission.min_count": "store/test_admission.py"
    "::test_a_feasign_gets_a_row_in_the_pass_that_makes_its_count_full",
    "table.admission.filter_bytes": f"{_TABLE}::test_a_filter_has_filter_bytes",
    "table.admission.probability": "store/test_admission.py"
    "::test_a_pass_admits_about_the_given_share_and_draws_again_in_the_next",
    "table.pretrained": "training/test_pretrained.py"
    "::test_frozen_vectors_tell_new_items_apart_and_are_served[deepfm]",
    "table.max_rows": "store/test_bounds.py"
    "::test_the_rows_that_stay_are_those_of_a_sort[True-least_score]",
    "table.evict": "store/test_bounds.py"
    "::test_the_rows_that_stay_are_those_of_a_sort[True-least_recent]",
    "table.on_bad_grad": f"{_TABLE}::test_a_bad_gradient_is_left_out_or_clipped[skip-0]",
    "table.expand_dim": "operators/test_extended.py"
    "::test_expand_is_made_with_embedx_and_moves_by_a_gradient_of_its_own",
    "table.counts": "operators/test_table_counts.py"
    "::test_rows_feed_the_operator_and_its_gradient_counts[conv]",
    "table.life.show_click_decay_rate": f"{_LIFE}::test_the_decay_comes_before_the_shrink",
    "table.life.delete_threshold": f"{_LIFE}::test_the_decay_comes_before_the_shrink",
    "table.life.delete_after_unseen_days": f"{_LIFE}"
    "::test_a_row_unseen_for_too_long_goes_and_comes_back_new",
    "table.life.base_threshold": "saves/test_saver.py"
    "::test_a_row_that_falls_under_the_base_threshold_is_deleted_and_may_come_back",
    "table.life.delta_threshold": f"{_LIFE}::test_what_a_delta_held_is_not_in_the_next_one",
    "table.life.delta_keep_days": f"{_LIFE}::test_what_a_delta_held_is_not_in_the_next_one",
    "table.share": "data/test_several_tables.py"
    "::test_a_table_over_its_share_of_the_budget_splits_the_pass",
    "feeder.budget_bytes": f"{_FEEDER}::test_instances_over_budget_bytes_go_to_disk",
    "feeder.cache_bytes": f"{_FEEDER}::test_a_cache_holds_parsed_files_up_to_cache_bytes",
    "ranks.rows": f"{_RANKS}::test_rows_are_rounded_to_the_format_of_ranks_rows",
    "ranks.gradients": "ranks/test_error_feedback.py"
    "::test_what_was_applied_and_what_was_kept_are_the_sum_of_the_gradients",
    "ranks.parity": "ranks/test_rank_parity.py"
    "::test_a_job_with_ranks_parity_protects_its_newest_commit",
    "ranks.sync_weight_step": "ranks/test_dense_modes.py"
    "::test_parameters_are_averaged_after_just_so_many_steps_and_when_the_pass_ends",
    "ranks.staleness": f"{_RANKS}::test_rows_lack_the_gradients_of_as_many_steps_as_staleness_says",
    "save.out": f"{_SAVE}::test_each_date_has_a_base_and_then_deltas_in_save_out",
    "save.copy_to": f"{_SAVE}::test_saves_are_copied_to_another_place",
    "save.delta_every": f"{_SAVE}::test_a_delta_is_written_after_so_many_passes[never]",
    "publish.file": f"{_PUBLISH}::test_saves_are_served_from_the_file_in_the_precision[int8]",
    "publish.to": "tools/publish/test_follow.py"
    "::test_each_sink_shows_the_newest_save_in_the_precision[int8]",
    "publish.precision": f"{_PUBLISH}::test_saves_are_served_from_the_file_in_the_precision[int8]",
    "publish.onnx": f"{_PUBLISH}::test_saves_have_an_onnx_model",
    "publish.gate_files": f"{_PUBLISH}::test_a_save_outside_the_bounds_on_gate_files_is_not_served",
}
SECTIONS = ("table.", "feeder.", "ranks.", "save.", "publish.")


def _options(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _options(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_option_names_a_test_of_its_effect() -> None:
    options = {option for option in _options(Config) if option.startswith(SECTIONS)}
    assert EFFECTS.keys() == options
    for test in EFFECTS.values():
        file, _, name = test.partition("[")[0].partition("::")
        functions = ast.parse((ROOT / "tests" / file).read_text()).body
        assert name in {one.name for one in functions if isinstance(one, ast.FunctionDef)}, test


@pytest.mark.long
@pytest.mark.parametrize("option", EFFECTS)
def test_a_test_of_an_effect_fails_without_the_option(option: str) -> None:
    plugins = ["-p", "tests.support.ignored_option", "-p", "no:cacheprovider"]
    command = ["-m", "pytest", "-q", "-x", *plugins, f"tests/{EFFECTS[option]}"]
    done = processes.run(command, env={"IGNORED_OPTION": option})
    (ROOT / ".-writer").unlink(missing_ok=True)  # the lock of publish.file, which is "" then
    assert done.returncode == 1, done.stdout + done.stderr
    assert " validation error" not in done.stdout, done.stdout  # of the config: not an effect
