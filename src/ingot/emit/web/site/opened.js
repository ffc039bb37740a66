// A page that was opened from a file gets no scripts that are modules, and nothing that it fetches: it says so.

if (location.protocol === 'file:') {
  document.getElementById('state').classList.add('wrong');
  document.getElementById('progress').hidden = true;
  document.getElementById('said').textContent =
    'This page was opened from a file, where browsers load no models. Serve its folder, as by '
    + '"python -m http.server -d FOLDER", and open localhost:8000 instead.';
}
