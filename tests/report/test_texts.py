from goen.report.texts import slug


def test_names_in_any_script_and_of_any_length_have_files_of_their_own() -> None:
    names = [
        "日本",
        "中国",
        "ÄÖ",
        "ÖÄ",
        "",
        "!!",
        "a" * 300,
        "a" * 299 + "b",
        "x é",
        "x ü",
        "\ud800",
    ]
    found = [slug(name) for name in names]
    assert len({*found}) == len(names)
    for file in found:
        assert file
        assert file.isascii()
        assert len(file) <= 100
        assert file.replace("-", "").isalnum()


def test_plain_names_stay_as_they_are() -> None:
    for name, file in (("svhn", "svhn"), ("CIFAR-100 (50 classes)", "cifar-100-50-classes")):
        assert slug(name) == file
    assert slug("flagged — and why") == "flagged-and-why"
    assert slug("a" * 80) == "a" * 80
