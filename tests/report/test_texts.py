import pytest
from jinja2 import UndefinedError

from goen.report.texts import slug, text_of


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


def test_values_in_a_text_are_escaped_and_none_may_be_missing() -> None:
    values = {"total": 2000, "rate": 0.05, "flagged": 7}
    text = text_of("score.html", "lead", gate_name="<script>&", **values)
    assert text.startswith("The gate &lt;script&gt;&amp; scored 2,000 images. At its")
    assert text.endswith("it flags <b>7</b> of them as out-of-distribution (OOD).")
    assert "\n" not in text
    with pytest.raises(UndefinedError):
        text_of("score.html", "lead", **values)
