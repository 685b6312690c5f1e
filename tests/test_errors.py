from goen.errors import unknown


def test_the_known_names_are_listed_and_the_nearest_is_offered() -> None:
    assert str(unknown("feature", "lat", ["late", "early"])) == (
        "Unknown feature 'lat'. Did you mean 'late'? Known: early, late."
    )


def test_where_nothing_is_known_the_error_says_so() -> None:
    assert str(unknown("feature", "z", [])) == "Unknown feature 'z'. There are none."
