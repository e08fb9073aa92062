from tests.store.conftest import database as database
from tests.store.conftest import fleet as fleet
