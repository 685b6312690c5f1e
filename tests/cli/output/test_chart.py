from goen.cli.output.chart import Chart


def test_the_line_of_the_alarm_is_the_top_and_the_least_value_the_bottom() -> None:
    chart = Chart(4.6)
    chart.add([-1.5, 0.0, 10.0])
    lines = chart.drawn(width=30, rows=4).split("\n")
    assert lines[0] == "     4.6 ··█"
    assert lines[-1].startswith("    -2.0 ▂█")
    assert len(lines) == 4


def test_an_empty_chart_has_its_axis() -> None:
    assert Chart(4.6).drawn(40, rows=2).split("\n") == ["     4.6", "     0.0"]


def test_many_points_are_joined_and_no_peak_is_lost() -> None:
    chart = Chart(100.0)
    values = [0.0] * 50_000
    values[31_234] = 100.0
    chart.add(values)
    top = chart.drawn(width=109).split("\n")[0]
    assert top.count("█") == 1
    assert abs(top.index("█") - 9 - 62) <= 2
    assert len(chart._points) < 4096
    parts = Chart(100.0)
    for start in range(0, 50_000, 777):
        parts.add(values[start : start + 777])
    assert parts.drawn(109) == chart.drawn(109)


def test_a_narrow_terminal_still_shows_something() -> None:
    chart = Chart(4.0)
    chart.add([1.0, 4.0])
    assert "█" in chart.drawn(width=3)
