import pytest

from tests.extras import EXTRAS, missing_extra


@pytest.mark.parametrize(
    ("failure", "missing", "found"),
    [
        ("ModuleNotFoundError: No module named 'onnxruntime.x'", "onnxruntime", True),
        ("goen: Exporting needs onnx: pip install\n'goen[onnx]'.", "onnx", True),
        ("ModuleNotFoundError: No module named 'goen.x'", "onnx", False),
        ("assert 1 == 2", "onnx", False),
    ],
)
def test_a_failure_for_want_of_a_package_is_known(failure: str, missing: str, found: bool) -> None:
    reason = missing_extra(failure, {missing: EXTRAS[missing]})
    assert reason == (f"needs {missing}: pip install 'goen[onnx]'" if found else None)
    assert missing_extra(failure, {}) is None  # it is installed: the test has failed
