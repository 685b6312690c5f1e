from dataclasses import replace

from tests.monitor.predictions import digit_gate


def test_a_gate_says_what_it_takes_and_guarantees() -> None:
    html = digit_gate()._repr_html_()
    for text in ("images of 32×32", "7 classes", "GoenM()", "at most 0.05", "120 set the threshold",
                 "664 of 664 are kept", "on held-out images", "early, late, entropy"):  # fmt: skip
        assert text in html, text


def test_names_are_escaped_and_metadata_may_be_anything() -> None:
    gate = digit_gate()
    hostile = replace(
        gate,
        classes=("<script>alert(1)</script>",) * 7,
        metadata={"held_out_accuracy": "<script>", "splits": 7},
    )
    html = hostile._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "accuracy" not in html
    assert (
        "within every predicted class"
        in replace(gate.with_false_alarm_rate(0.2), per_class=True)._repr_html_()
    )
