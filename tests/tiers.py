"""What `make test` leaves to `make test-all`: tests of the second tier, in one place.

The first tier has every kind of check once, so that it is run before each commit. A test marked `slow`, or
one that needs the real model, is of the second tier wherever it stands; the others are listed here.
"""

from __future__ import annotations

SPARSE = {
    "test_support.py::test_family_is_served_as_the_table_says": 3,
    "test_cache_exact.py::test_chunked_prefill_equals_dynamic_cache": 4,
    "test_devices.py::test_no_operation_assumes_a_cpu_or_reads_values_back": 4,
    "test_generate_modes.py::test_promises_hold_in_every_mode": 8,
    "test_generate_modes.py::test_promises_of_presets_hold_in_every_mode": 3,
    "test_native_encode.py::test_awkward_numbers": 4,
    "test_native_encode.py::test_pages_and_numbers_are_those_of_pytorch": 5,
    "test_native_engine.py::test_engine_equals_attention_over_decoded_tokens": 5,
    "test_peers.py::test_literal_decoding_is_the_decode_exact_pass_in_float64": 3,
    "test_planner.py::test_a_plain_cache_holds_what_was_planned_without_weights": 3,
    "test_reuse.py::test_quantize_after_is_exact_below_and_the_plain_format_above": 4,
    "test_reuse.py::test_saved_cache_continues_as_the_original_would": 6,
    "test_simulate.py::test_batches_with_left_padding": 4,
    "test_simulate.py::test_divergence_of_the_two_paths_in_float32": 4,
    "test_simulate.py::test_every_preset_and_policy": 5,
    "test_simulate.py::test_other_formats_and_models": 4,
    "test_simulate.py::test_prompt_that_streamed_in": 4,
    "test_simulate_rows.py::test_rows_equal_their_own_decoding": 6,
    "test_simulate_rows.py::test_sliding_layers_that_are_packed": 5,
    "test_simulate_rows.py::test_soft_caps_and_sink_logits": 4,
    "test_store_rollback.py::test_going_back_within_the_reserve_is_as_if_never_gone_forward": 3,
}
"""Of the cases of these tests every n-th is of the first tier."""

LATER = (
    "test_cli.py::test_a_whole_sweep_of_a_tiny_model",
    "test_docs.py",
    "test_docs_site.py",
    "test_paper.py::test_captions_say_model_weights_text_and_protocol",
    "test_paper.py::test_two_processes_make_the_same_bytes",
    "test_peers.py::test_memory_of_a_peer_is_what_it_holds",
    "test_peers_remote.py::test_a_format_here_packs_what_a_press_left_there",
    "test_peers_remote.py::test_another_model_there_is_an_error",
    "test_peers_remote.py::test_its_errors_are_ours_and_cost_no_other_arm",
    "test_peers_remote.py::test_one_sweep_measures_ours_and_theirs",
    "test_peers_remote.py::test_the_process_ends_with_its_arm",
    "test_report_html_browser.py",
    "test_reuse.py::test_pages_of_dropped_forks_are_used_again",
    "test_sweep_behaviour.py::test_a_finished_sweep_measures_nothing_and_a_new_format_only_itself",
    "test_sweep_behaviour.py::test_a_sweep_at_chance_says_so_in_rows_frame_and_report",
    "test_sweep_executors.py::test_a_worker_killed_in_the_middle_loses_nothing",
    "test_sweep_executors.py::test_workers_on_one_folder_measure_every_cell_once",
    "test_sweep_robust.py::test_other_failures_say_nothing_about_larger_contexts",
    "test_sweep_robust.py::test_the_reason_says_what_happened_and_the_rest_goes_on",
    "test_sweep_robust.py::test_a_checkpoint_that_is_refused_costs_its_own_cells",
)
"""Files and tests that start processes, browsers or whole sweeps; smaller tests of the first tier cover the
same code without them."""


def later(nodeid: str, seen: dict[str, int]) -> bool:
    """Whether a test is of the second tier by the lists above; `seen` counts the cases met so far."""
    name = nodeid.rpartition("tests/")[2]
    test = name.partition("[")[0]
    if name.startswith(LATER):
        return True
    seen[test] = seen.get(test, -1) + 1
    return seen[test] % SPARSE.get(test, 1) != 0
