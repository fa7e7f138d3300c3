// The page at `/`: what the server holds and does, live, and a form to try a model.
#pragma once

#include <string_view>

#include "http/message.h"

namespace trireme::serve {

/// A page of the program in its one style: `body` is markup, `script` what runs on it, neither of which may
/// hold anything from outside. Its policy lets a browser run this script alone and talk to this server only.
http::Response house_page(std::string_view title, std::string_view body, std::string_view script);

/// The page of a server. Nothing is loaded from elsewhere, so it works where there is no other network.
http::Response live_page();

// The parts of its script, in order.
std::string_view live_page_metrics_script();
std::string_view live_page_view_script();
std::string_view live_page_form_script();

}  // namespace trireme::serve
