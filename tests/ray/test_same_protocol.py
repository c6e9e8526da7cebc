"""What a websocket does at a server it does at a gateway, but for what it is told of a load."""

import tests.server.test_websocket as at_a_server

NOT_HERE = {
    "test_load_progress_comes_only_to_those_who_asked",
    "test_how_far_a_prompt_followed_the_load_is_told_to_who_asked_it",
    "test_a_failed_load_is_told",
    "test_a_server_that_ends_tells_the_clients_of_answers_under_way",  # of Ray Serve's replicas these end first
}
globals().update(
    {name: test for name, test in vars(at_a_server).items() if name.startswith("test_") and name not in NOT_HERE}
)
