"""A service in, a web application over it out (`app.web.app.create_app`). `bringup explain` imports nothing of it."""
