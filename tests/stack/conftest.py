from tests import prefect_home as prefect_home  # before anything imports Prefect
