//! The sentinel as the services around it see it.

mod template_go;
