"""Alembic's entry: the caller brings the connection and owns its transaction (`fleet_agent.store.migrate`)."""

from alembic import context

from fleet_agent.store.tables import SQLModel

context.configure(connection=context.config.attributes["connection"], target_metadata=SQLModel.metadata)
context.run_migrations()
