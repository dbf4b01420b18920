"""Arrow arrays that are converted without pandas equal those of `pa.array`."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from pipeline.store.rows.arrays import arrow_of, numpy_of, strings_of


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_numbers_survive_conversion_to_arrow_and_back(dtype: str):
    values = np.arange(20, dtype=dtype)
    for array in (values, values[:0], values[3:9], values[::-3]):
        assert arrow_of(array).equals(pa.array(array))
        np.testing.assert_array_equal(numpy_of(arrow_of(array)), array)
    np.testing.assert_array_equal(numpy_of(pa.array(values)[5:8]), values[5:8])


@pytest.mark.parametrize("texts", [[], [""], ["a", "", "雪が川", "n\u00e4chste\n"]])
def test_texts_become_an_arrow_string_array(texts: list[str]):
    strings = strings_of(texts)
    strings.validate(full=True)
    assert strings.equals(pa.array(texts, pa.large_string()))


def test_pandas_is_not_imported():
    program = (
        "import sys, numpy as np\n"
        "from pipeline.store.rows.arrays import arrow_of, numpy_of, strings_of\n"
        "numpy_of(arrow_of(np.arange(3))), strings_of(['a'])\n"
        "print('pandas' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
