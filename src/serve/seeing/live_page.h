// The page at `/`: what the server holds and does, live, and a form to try a model.
#pragma once

#include <string_view>

#include "http/message.h"

namespace trireme::serve {

/// The page with a policy that lets a browser run this page's own script and style, and talk to this server
/// only: nothing is loaded from elsewhere, so the page works where there is no other network.
http::Response live_page();

// The parts of its script, in order.
std::string_view live_page_metrics_script();
std::string_view live_page_view_script();
std::string_view live_page_form_script();

}  // namespace trireme::serve
