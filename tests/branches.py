"""The tests that `make coverage` runs: together they take nearly every branch of the parsers, writers and tables.

Other tests add no branch, so the run takes only minutes. Processes that a test starts are not measured. pyproject.toml
lists the measured modules.
"""

import argparse
import subprocess
import sys

from tests.places import FORMAT_TESTS, ROOT, suite

# Modules of tests, and single tests of slow modules.
TESTS = (
    FORMAT_TESTS,
    # Formats in conversions, commands and words.
    *(
        f"tests/conversion/test_{name}.py"
        for name in (
            *("align", "bintensors", "cnn_v2", "embd", "finalfusion", "gguf", "gguf_quantize", "gguf_split"),
            *("gguf_types", "onnx", "safetensors", "sharded_sources", "torch"),
        )
    ),
    *("tests/words/test_embd.py", "tests/words/test_finalfusion.py", "tests/cli/test_checkpoints.py"),
    *map(suite, ("formats", "table", "errors", "attacks", "sharded", "nesting", "save", "words_write", "align")),
    *map(suite, ("writer_bounds", "framed_headers", "read_only_format", "strict_json")),
    "tests/plans/test_plan_run.py::test_nothing_is_handed_out_before_it_is_verified",
    "tests/plans/test_plan_run.py::test_entries_of_archives_are_verified_one_by_one",
    "tests/plans/test_plan_reads.py",
    "tests/remote/test_stores.py",
    "tests/trust/test_trust.py::test_a_mapping_and_a_path_of_a_list",
    "tests/conversion/test_convert.py::test_limits_are_limits",
    "tests/conversion/test_convert_names.py::test_save_refuses_two_tensors_of_one_name",
    "tests/conversion/test_convert_names.py::test_different_names_of_one_hash_are_written",
    "tests/llama/test_llama.py::test_a_single_file_is_translated_when_asked_for",
    "tests/robustness/test_big.py::test_a_collision_flood_stays_quick",
    "tests/robustness/test_big.py::test_a_flooded_vocabulary_stays_quick",
    "tests/robustness/test_big.py::test_keys_whose_hashes_collide",
    "tests/contract/test_contract.py::test_limits_are_enforced",
    "tests/contract/test_contract.py::test_verify_reports_its_checks",
    "tests/robustness/test_damage.py::test_every_prefix_is_refused",
    "tests/conversion/test_quantizing.py::test_decoding_in_pieces",
    "tests/cli/test_cli_quantize.py::test_inspect_shows_how_tensors_are_quantised",
    "tests/cli/test_cli_quantize.py::test_inspect_json_on_quantised_tensors",
    "tests/cli/test_cli_quantize.py::test_inspect_shows_a_file_whose_mask_is_damaged",
    "tests/robustness/test_limits.py::test_headers_as_large_as_allowed",
    "tests/robustness/test_limits.py::test_names_are_limited_together",
    "tests/robustness/test_limits.py::test_the_largest_header_that_the_references_read",
    "tests/robustness/test_limits.py::test_vocabularies_of_finalfusion_are_bounded",
    "tests/robustness/test_limits.py::test_a_walk_ends_where_words_are_too_many_already",
    "tests/robustness/test_limits.py::test_listed_ngrams_are_bounded",
    "tests/faults/test_reading.py::test_verify_of_a_file_that_becomes_shorter",
    "tests/faults/test_kinds.py::test_errors_on_other_files_name_their_kind",
    "tests/faults/test_kinds.py::test_errors_on_files_of_words_say_how_to_convert_them",
    "tests/faults/test_kinds.py::test_a_file_that_only_begins_like_words_is_not_named_so",
    "tests/faults/test_kinds.py::test_foreign_formats_are_named_by_their_suffix",
)


def main() -> int:
    """Run the tests and report the branches that none takes. Returns 0 if nothing is missing and no test fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.branches", description=main.__doc__)
    parser.add_argument("--data-file", default=".coverage", help="where coverage keeps what it has counted")
    data_file = f"--data-file={parser.parse_args().data_file}"
    # One seed: the same branches, each time.
    pytest = ["-m", "pytest", "-q", "--hypothesis-seed=0", *TESTS]
    python = [sys.executable, "-m", "coverage"]
    failed = subprocess.run([*python, "run", data_file, *pytest], cwd=ROOT, check=False).returncode
    missing = subprocess.run([*python, "report", data_file], cwd=ROOT, check=False).returncode
    return failed or missing


if __name__ == "__main__":
    sys.exit(main())
