"""The public names are exactly these: adding or losing one is a decision."""

import goen


def test_public_names() -> None:
    assert sorted(goen.__all__) == ["__version__", "data", "errors"]
    assert sorted(goen.data.__all__) == [
        "ImageSet",
        "OodSet",
        "Protocol",
        "load",
        "names",
        "protocol",
        "require_disjoint",
    ]
    for name in goen.__all__:
        assert hasattr(goen, name)
