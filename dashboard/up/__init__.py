"""`manage.py up`: PostgreSQL, site preparation, a worker and the web server under one supervisor."""
