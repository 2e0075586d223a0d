"""The rows of the threat tables: for each the defect of the file, and the required outcome.

C rows hold for every format they apply to, D rows for a model in a directory. S rows are about saving and L rows about
the limits of a format: these attack the writer, so their cases are tests and not files. A format's own rows are with
its attacks (`tests.builders.Builder.damage`).
"""

from functools import cache

from tests import builders

COMMON = {
    "C1": "Cut off at every byte: TruncatedError or UnknownFormatError; the message names an empty file.",
    "C2": "Bytes behind the end, a second file, the tail of a ZIP archive: LayoutError, and a warning if not strict.",
    "C3": "Another kind of file (swapped magic, LFS pointer, HTML, gzip, zip, pickle, zeros, `.distcp`): an error with "
    "a hint.",
    "C4": "Counts of 2^32 - 1, 2^60, 2^64 - 1: refused before anything is allocated for them.",
    "C5": "Offset plus size beyond 2^32 or 2^64: LayoutError, nothing wraps around.",
    "C6": "Products of a shape, bytes, padding or sums beyond 2^63: LayoutError, also where a dimension is 0.",
    "C7": "Dimensions of 0, also next to enormous ones: an empty array.",
    "C8": "No dimensions, or too many: a scalar or an error, as the format has it; never more than numpy's 64.",
    "C9": "Tensors that overlap, share bytes, lie out of order or leave holes: LayoutError.",
    "C10": "Two tensors of one name: LayoutError. An empty name: legal, and a warning.",
    "C11": "Names that are not UTF-8: FormatError. Names that are, however wild: legal, and escaped wherever shown.",
    "C12": "JSON that is not strict JSON, or too deep, or not an object: FormatError.",
    "C13": "Invalid TOML, or too deep, or with numbers too long: FormatError; dates are shown as text.",
    "C14": "A code of a data type that does not exist: UnsupportedError with the codes that do.",
    "C15": "Truth values of 2 to 255: legal, the bytes stay as they are.",
    "C16": "NaN, infinities and denormals among the data: legal, bit for bit.",
    "C17": "A header with ten million tensors: LimitError, or done within seconds.",
    "C18": "Names or words whose hashes collide: look-ups stay fast.",
    "C19": "Links are followed; FIFOs, sockets and devices are a NotRegularFileError at once.",
    "C20": "Files without tensors open; an empty file is an error and not one of mmap.",
    "C21": "A file that cannot be mapped is read instead, with a log message, unless mapping was asked for.",
    "C22": "A file truncated after it was opened: an exception from every reader, SIGBUS only from views.",
    "C23": "A file replaced by renaming: the old content stays.",
    "C24": "A file overwritten in place: look-ups raise FileChangedError, parsed structures stay safe.",
    "C25": "Another file takes the path while it is being opened: everything goes through one descriptor.",
    "C26": "A sparse file of a TiB: mapping it is fine, copying it is a LimitError when there is a limit.",
    "C27": "More files than descriptors: views keep none, nor do shards of a model of many files.",
    "C28": "More tensors than mappings: one mapping for a file.",
    "C29": "Every kind of source: bytes, arrays, mappings, descriptors, file objects; not contiguous: TypeError.",
    "C30": "An index whose shards lie elsewhere, are missing or have a name twice: an error; nothing else is opened;"
    " if not strict, a warning. One that is wrong about tensors that are there, or about sizes: a warning.",
    "C31": "A big-endian host: every number is read and written little-endian.",
    "C32": "Formats of other packages: none is imported by itself.",
}
OTHER = {
    "D1": "An index of shards that is not a JSON object with a map of texts: FormatError.",
    "R1": "A model larger than its control group: `plan.run(release=True)` goes through it, and is not killed.",
    "R2": "A file that becomes shorter under a plan: an error at the next tensor; the other threads of `warm` end.",
    "R3": "An index of more parts than memory has room for, or out of range: PlanError before anything is read.",
    "R4": "A changed byte under a checksum: with verify=True an error before the first tensor comes, with "
    '"last" before the last.',
    "R5": "A network or FUSE file system: read, not mapped, so that a lost page is an exception.",
    "R6": "Pages of a stranger's file, about which the system lies: PermissionError, and not a wrong number.",
    "O1": "A store that answers 5xx or 429, resets or ends early: tried again, with what came kept; then RemoteError.",
    "O2": "A store that never answers, or drips: given up at its deadline, five times at most, and holds no thread.",
    "O3": "Other bytes than those asked for, more of them, or the whole object: RemoteError at once.",
    "O4": "An object that changes, shrinks or disappears, also while it is opened: FileChangedError; one that has no "
    "version is refused.",
    "O5": "A redirect: refused, nothing asked of its target, unless Remote(redirects=True); from HTTPS never to HTTP.",
    "O6": "Secrets in addresses and in answers of a store: in no name, message or log, and sent nowhere else.",
    "O7": "An index that names objects elsewhere, in any spelling, or none: an error, and nothing else is asked for.",
    "O8": "An object that claims to be very large: only headers and tensors are fetched, within limits.",
    "O9": "An attack on a format, in a store: the error that it has as a file.",
    "O10": "Headers of an answer that make no sense: RemoteError.",
    "S1": "A write fails without space or permission: OSError, the old file stays, no other remains.",
    "S2": "fsync fails: OSError, the old file stays; on the directory: the new one is in place.",
    "S3": "Renaming fails: OSError, the old file stays.",
    "S4": "Killed anywhere: the old file or the new one.",
    "S5": "Saved over the file it was loaded from: fine.",
    "S6": "The target is a link, a directory, a FIFO, read-only, without a parent: the link's target, or its error.",
    "S7": "Two writers at once: one of two whole files.",
    "S8": "A tensor that changes while it is written: the checksum is that of the bytes written.",
    "S9": "A value that does not fit: EncodeError before a file is there.",
    "X1": "A manifest that is damaged, of another version or of another run: one error, nothing is written.",
    "X2": "A model that exists, one that another run is writing, or a file that is read, as the target: TargetError.",
    "X3": "A task whose names leave its directories, or whose source has changed: an error in the worker.",
    "X4": "Something else than a report from a worker, or a worker that is gone: an error that names the shard.",
    "X5": "A shard that was changed after it was recorded: it is written again.",
    "X6": "Tasks and reports are plain values: unpickling them calls nothing but the classes of this package.",
    "K1": "A shard that is damaged, missing or truncated ends the load on every rank, within seconds.",
    "K2": "A file that is damaged for one rank alone: all ranks raise, and know whose error it was.",
    "K3": "A file that becomes shorter between reads of one slice: TruncatedError at the byte, never SIGBUS.",
    "L1": "EMBD holds what its fields can express; save refuses more.",
    "L2": "AMB holds what its fields can express; save refuses more.",
    "L3": "CNN v2 holds 2^32 - 1 weights; save refuses more.",
    "L4": "BinTensors' header holds 100,000,000 bytes; save refuses more.",
    "L5": "finalfusion holds what its fields can express; save refuses more.",
}


@cache
def parts():
    """The parts of the threat tables, by subject: rows, each with its sentence."""
    found = {"Every format": COMMON}
    for builder in builders.known().values():
        own = {row: text for module in builder.damaging for row, text in getattr(module, "ROWS", {}).items()}
        if own:
            found[builder.title] = own
    for title, letter in (
        ("Models in a directory", "D"),
        ("Plans", "R"),
        ("Object stores", "O"),
        ("Saving", "S"),
        ("Executors, ranks and manifests", "X"),
        ("Ranks of torch.distributed", "K"),
        ("The most that a format holds", "L"),
    ):
        found[title] = {row: text for row, text in OTHER.items() if row[0] == letter}
    return found


@cache
def rows():
    return {row: text for part in parts().values() for row, text in part.items()}


# Tests by name, for rows that attack a process, a file system or a writer, or that files show only in part.
TESTS = {
    "C1": ("test_every_prefix_is_refused", "test_truncated_files_on_disk_are_errors_too"),
    "C3": ("test_files_of_ranks_are_refused_with_the_command_that_joins_them",),
    "C4": ("test_all_attacks_within_half_a_gibibyte",),
    "C17": ("test_very_many_tensors_open_in_bounded_time_and_memory", "test_limits_are_enforced"),
    "C18": ("test_a_collision_flood_stays_quick", "test_a_flooded_vocabulary_stays_quick"),
    "C19": (
        "test_errors_on_paths_that_are_no_regular_files_name_their_kind",
        "test_a_cache_of_links",
        "test_a_model_in_the_cache_of_hugging_face",
    ),
    "C21": ("test_a_file_that_cannot_be_mapped_is_read",),
    "C22": (
        "test_a_file_that_shrinks_meanwhile_is_an_exception",
        "test_a_file_that_became_shorter_is_an_error_in_any_thread",
    ),
    "C23": ("test_replacing_the_file_by_rename_is_safe", "test_unpickling_notices_another_file"),
    "C24": ("test_a_file_that_changed_is_noticed_at_look_up", "test_a_file_that_changed_is_noticed_by_verify"),
    "C25": ("test_reading_any_file_opens_that_path_and_nothing_else",),
    "C26": ("test_the_copy_is_bounded_before_anything_is_read", "test_a_sparse_safetensors_file"),
    "C27": (
        "test_views_hold_no_descriptors",
        "test_ten_thousand_openings_leave_nothing",
        "test_three_thousand_shards_and_a_thousand_descriptors",
    ),
    "C28": ("test_arrays_are_views_of_the_mapping",),
    "C29": (
        "test_every_kind_of_source",
        "test_a_strided_memoryview_is_refused",
        "test_a_descriptor_is_borrowed",
        "test_a_source_of_a_wrong_type_is_a_type_error",
    ),
    "C30": ("test_shards_outside_the_directory_are_never_opened",),
    "C31": ("test_content_is_the_builders", "test_arrays_of_any_strides_and_byte_order"),
    "C32": ("test_reading_any_file_opens_that_path_and_nothing_else",),
    "R1": ("test_a_model_larger_than_its_control_group", "test_a_model_larger_than_the_memory_of_its_process"),
    "R2": ("test_a_file_that_becomes_shorter_under_way", "test_a_file_that_becomes_shorter_while_it_is_warmed"),
    "R3": ("test_runs_without_number_are_refused", "test_wrong_wants_are_one_clear_error"),
    "R4": (
        "test_nothing_is_handed_out_before_it_is_verified",
        "test_a_changed_byte_is_an_error_before_the_last_tensor",
    ),
    "R5": ("test_auto_reads_where_mappings_may_fail",),
    "R6": ("test_who_may_not_ask_is_not_told",),
    "O1": (
        "test_what_fails_in_passing_is_tried_again",
        "test_what_goes_on_failing_is_one_error",
        "test_bytes_that_came_are_not_asked_for_again",
    ),
    "O2": (
        "test_a_stuck_request_is_cancelled",
        "test_requests_that_stay_stuck_are_one_error",
        "test_a_server_that_drips_is_given_up",
        "test_a_header_that_does_not_end_holds_no_thread",
        "test_bytes_of_a_given_up_request_go_nowhere",
    ),
    "O3": ("test_wrong_answers_are_refused_at_once",),
    "O4": (
        "test_a_changed_object_is_noticed",
        "test_an_object_that_changes_while_it_is_opened",
        "test_deleted_and_truncated_objects",
        "test_stores_without_strong_tags",
        "test_objects_without_a_version_are_refused_unless_asked_for",
    ),
    "O5": ("test_redirects_are_refused_unless_asked_for", "test_redirects_lead_to_no_unprotected_address"),
    "O6": (
        "test_signatures_are_shown_to_the_server_alone",
        "test_what_obstore_says_becomes_words_of_ours",
        "test_what_no_address_has_is_refused",
        "test_the_query_stays_behind_at_a_redirect",
    ),
    "O7": (
        "test_shards_elsewhere_are_never_asked_for",
        "test_names_are_what_they_are",
        "test_a_store_that_lists_less_than_the_index_names",
    ),
    "O8": ("test_one_tensor_of_a_large_object_takes_three_requests", "test_limits_hold_before_bytes_come"),
    "O9": ("test_attacks_are_refused_in_a_store_as_in_a_file",),
    "O10": (
        "test_odd_headers_are_one_error",
        "test_redirects_to_no_address_are_refused",
        "test_redirects_to_itself_end",
        "test_an_object_without_bytes_has_a_length",
    ),
    "S1": (
        "test_the_target_is_the_old_file_or_the_new_one",
        "test_a_file_size_limit_leaves_the_old_file",
        "test_a_full_disk_leaves_the_old_file",
    ),
    "S2": ("test_the_target_is_the_old_file_or_the_new_one", "test_a_save_that_succeeds_has_written_the_new_file"),
    "S3": ("test_the_target_is_the_old_file_or_the_new_one",),
    "S4": (
        "test_a_killed_writer_leaves_the_old_file_or_the_new_one",
        "test_no_litter_but_one_name_of_a_killed_process",
    ),
    "S5": ("test_saving_over_the_file_that_is_mapped",),
    "S6": (
        "test_targets_that_are_no_files",
        "test_a_symbolic_link_stays_a_link",
        "test_a_directory_that_may_not_be_written",
    ),
    "S7": ("test_two_writers_both_complete", "test_processes_that_save_to_one_path"),
    "S8": ("test_the_checksum_is_that_of_the_bytes_written",),
    "S9": ("test_what_a_format_cannot_express", "test_a_type_that_the_target_lacks"),
    "K1": ("test_damage_ends_the_load_on_every_rank",),
    "K2": ("test_damage_that_one_rank_sees_ends_all",),
    "K3": ("test_runs_of_a_file_that_becomes_shorter",),
    "X1": ("test_a_bad_manifest_is_one_clear_error", "test_a_manifest_longer_than_limits_allow"),
    "X2": (
        "test_a_model_that_no_manifest_accounts_for_is_not_replaced",
        "test_two_runs_do_not_write_one_model",
        "test_nothing_is_converted_onto_its_source",
    ),
    "X3": ("test_a_task_of_a_directory_that_it_leaves_is_refused", "test_a_source_that_changes_after_the_deal"),
    "X4": ("test_a_report_of_another_kind_is_refused", "test_errors_of_the_executor_name_the_shard"),
    "X5": ("test_a_run_goes_on_where_another_ended",),
    "X6": ("test_tasks_are_small_and_plain",),
    "L1": ("test_names_have_65535_bytes", "test_data_beyond_four_gibibytes"),
    "L2": (
        "test_sixty_four_dimensions_are_the_most",
        "test_dimensions_are_below_2_to_the_32",
        "test_sections_at_the_bound_of_their_size",
        "test_blocks_of_amb_have_65535_elements",
    ),
    "L3": ("test_the_largest_layer_that_can_be", "test_what_cannot_be_expressed_is_refused"),
    "L4": ("test_a_header_of_100_000_000_bytes_and_no_more",),
    "L5": ("test_words_and_subwords_have_bounds", "test_what_cannot_be_expressed_is_refused_before_a_file_is_there"),
}
