from tests.environments import laws
from stepwell.environments.lookup import LookupConfig
case = laws.Case("lookup", lambda folder: LookupConfig().build(), ((laws.call("search", item="zz"), laws.call("answer", colour="x")),(laws.call("search", item="zz"),)*3))
laws.CASES = (case,)
from tests.environments.test_laws import *
