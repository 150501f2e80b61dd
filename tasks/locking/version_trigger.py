"""The trigger that raises the row's `version` on every UPDATE, also from outside the ORM."""

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

# At the end of the range the version restarts at 1; versions are only compared for equality. Without this, `version +
# 1` beyond 2147483647 is an error, which failed every claim that met the row.
CREATE_FUNCTION = """
CREATE OR REPLACE FUNCTION rowlock_raise_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := CASE WHEN OLD.version >= 2000000000 THEN 1 ELSE OLD.version + 1 END;
    RETURN NEW;
END $$
"""
# `<=` and not `=`: with `=`, an UPDATE that sets a lower version would lower it.
CREATE_TRIGGER = """
CREATE OR REPLACE TRIGGER rowlock_version BEFORE UPDATE ON {table}
FOR EACH ROW WHEN (NEW.version <= OLD.version OR OLD.version >= 2000000000) EXECUTE FUNCTION rowlock_raise_version()
"""
DROP_TRIGGER = "DROP TRIGGER rowlock_version ON {table}"


class VersionTrigger(Operation):
    """Migration operation: raise `version` on each UPDATE of the model's table that does not raise it.

    `VersionTrigger("app.model")`; the model needs an integer field `version`. An UPDATE that raises the version itself
    is left alone, none can lower it, and raw SQL is included. After 2,000,000,000 comes 1. Source: H. Benita on
    optimistic locking; reference statement in the manual, "Triggers" (WHEN conditions).
    """

    def __init__(self, model: str) -> None:
        self.model = model

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The models' state does not change: the trigger exists only in the database."""

    def database_forwards(
        self, app_label: str, editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        editor.execute(CREATE_FUNCTION)
        editor.execute(CREATE_TRIGGER.format(table=self._table(editor, to_state)))

    def database_backwards(
        self, app_label: str, editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        editor.execute(DROP_TRIGGER.format(table=self._table(editor, from_state)))

    def describe(self) -> str:
        return f"Raise {self.model}.version on every UPDATE"

    @property
    def migration_name_fragment(self) -> str:
        return f"version_trigger_{self.model.rpartition('.')[2].lower()}"

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__qualname__, [self.model], {}

    def _table(self, editor: BaseDatabaseSchemaEditor, state: ProjectState) -> str:
        return editor.quote_name(state.apps.get_model(self.model)._meta.db_table)
