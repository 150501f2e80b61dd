"""An app that lets workers run the handlers of the tests that need no ledger."""
