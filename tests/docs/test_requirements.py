from tests.requirements import PAGE, named, stated


def test_ids_that_tests_name_are_stated():
    """Each id of a requirement that a test names stands in the list of requirements."""
    assert {} == {one: files for one, files in named().items() if one not in stated()}


def test_each_id_is_stated_once():
    """Ids are numbered through in each group, without a gap, so that none is lost or given twice."""
    ids = [line.split()[1] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("- S")]
    counts = {group: sum(one.startswith(group) for one in ids) for group in ("S0", "S1", "S2", "S3", "S4")}
    assert [f"{group}-{number:02}" for group, count in counts.items() for number in range(1, count + 1)] == ids
