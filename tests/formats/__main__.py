from tests.formats import make_missing

make_missing()
