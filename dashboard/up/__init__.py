"""`manage.py up`: PostgreSQL, the preparation, a worker and the web server under one supervisor."""
