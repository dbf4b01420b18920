"""Arrow arrays made without pandas hold what `pa.array` makes of the same values."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from pipeline.store.arrays import arrow_of, numpy_of, strings_of


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_numbers_survive_conversion_to_arrow_and_back(dtype: str):
    values = np.arange(20, dtype=dtype)
    for each in (values, values[:0], values[3:9], values[::-3]):
        assert arrow_of(each).equals(pa.array(each))
        np.testing.assert_array_equal(numpy_of(arrow_of(each)), each)
    np.testing.assert_array_equal(numpy_of(pa.array(values)[5:8]), values[5:8])


@pytest.mark.parametrize("texts", [[], [""], ["a", "", "雪が川", "n\u00e4chste\n"]])
def test_texts_become_an_arrow_string_array(texts: list[str]):
    array = strings_of(texts)
    array.validate(full=True)
    assert array.equals(pa.array(texts, pa.large_string()))


def test_pandas_is_not_imported():
    program = (
        "import sys, numpy as np\n"
        "from pipeline.store.arrays import arrow_of, numpy_of, strings_of\n"
        "numpy_of(arrow_of(np.arange(3))), strings_of(['a'])\n"
        "print('pandas' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
