"""`python -m mini_agent`."""

from mini_agent.main import main

raise SystemExit(main())
