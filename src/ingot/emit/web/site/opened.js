// Shows a message on a page that was opened from a file, which can neither load modules nor fetch.

if (location.protocol === 'file:') {
  document.getElementById('state').classList.add('wrong');
  document.getElementById('progress').hidden = true;
  document.getElementById('status').textContent =
    'This page was opened from a file, where browsers load no models. Serve its folder, as by '
    + '"python -m http.server -d FOLDER", and open localhost:8000 instead.';
}
